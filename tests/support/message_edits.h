// Every small change of a message: the fields of its schema, one at a time, cleared, set, and set
// to the values at which code is wrong most often.
#ifndef ROPE_TESTS_SUPPORT_MESSAGE_EDITS_H_
#define ROPE_TESTS_SUPPORT_MESSAGE_EDITS_H_

#include <google/protobuf/message.h>

#include <functional>
#include <string>

namespace rope::testing {

// Calls `visit` with each change made in `message`, and undoes it. The name is the path of the
// field and the change: "rope.config.factor=-1", "positions=cleared". Messages inside are visited
// where they are set; of a list, the first element.
void ForEachEdit(google::protobuf::Message& message,
                 const std::function<void(const std::string& name)>& visit);

}  // namespace rope::testing

#endif  // ROPE_TESTS_SUPPORT_MESSAGE_EDITS_H_
