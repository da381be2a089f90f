# Comments of the headers as Doxygen reads them. The first is about the file.
1s|^// (.*)|/// @file\n/// \1|
s|^( *)// ([A-Z][a-z]+): {2,}|\1/// @par \2\n\1/// |
s|^( *)// |\1/// |
s|^( *)//$|\1///|
s|([;,{] +)// |\1///< |
