#include "farandole/dtype.h"

#include <gtest/gtest.h>

#include <set>

namespace farandole {
namespace {

TEST(DTypes, are_indexed_by_the_enum) {
  for (std::size_t index = 0; index < kDTypes.size(); ++index) {
    EXPECT_EQ(kDTypes[index].dtype, static_cast<DType>(index));
    EXPECT_EQ(&row_of(kDTypes[index].dtype), &kDTypes[index]);
  }
  EXPECT_EQ(kDTypes.back().dtype, DType::kFloat64);
}

TEST(DTypes, have_unique_names) {
  std::set<std::string_view> names;
  for (const DTypeRow& row : kDTypes) {
    EXPECT_FALSE(row.name.empty());
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
  }
}

// A name such as "int16" ends in its number of bits.
TEST(DTypes, have_the_size_that_the_name_says) {
  for (const DTypeRow& row : kDTypes) {
    const auto digits = row.name.find_first_of("0123456789");
    const std::size_t bits =
        digits == std::string_view::npos ? 8 : std::stoul(std::string(row.name.substr(digits)));
    EXPECT_EQ(row.bytes * 8, bits) << row.name;
  }
}

TEST(DTypes, have_the_dlpack_code_of_their_kind) {
  for (const DTypeRow& row : kDTypes) {
    DLPackCode code = DLPackCode::kInt;
    if (row.name.starts_with("bool")) code = DLPackCode::kBool;
    if (row.name.starts_with("uint")) code = DLPackCode::kUInt;
    if (row.name.starts_with("float")) code = DLPackCode::kFloat;
    if (row.name.starts_with("bfloat")) code = DLPackCode::kBFloat;
    EXPECT_EQ(row.dlpack_code, code) << row.name;
  }
}

}  // namespace
}  // namespace farandole
