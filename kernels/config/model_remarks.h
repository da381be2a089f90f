// What is said of a config.json by the name of its model and by keys of other model code. Internal
// to config_json.
//
// Threading:  Pure functions; any thread.
#ifndef ROPE_KERNELS_CONFIG_MODEL_REMARKS_H_
#define ROPE_KERNELS_CONFIG_MODEL_REMARKS_H_

#include <string_view>
#include <vector>

#include "kernels/config/json_fields.h"
#include "kernels/config/remark.h"

namespace rope::kernels {

// What the code of a model without rotary embedding has in its place: "learned positions". Empty:
// the model rotates, or is not known, or the file states rope parameters.
std::string_view PositionsInsteadOfRope(std::string_view model_type, const JsonFields& model);

// Adds a remark if nothing is known of `model_type`, or if its code is in the model's repository,
// and one for each key of `model` by which such code changes the rotation.
void RemarkModel(std::string_view model_type, const JsonFields& model,
                 std::vector<Remark>& remarks);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_CONFIG_MODEL_REMARKS_H_
