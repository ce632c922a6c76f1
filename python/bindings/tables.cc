#include "tables.h"

#include <string>

#include "farandole/device.h"
#include "farandole/dtype.h"
#include "farandole/operation.h"

namespace nb = nanobind;

namespace farandole::python {

void bind_tables(nb::module_& module) {
  nb::dict dtypes;
  for (const DTypeRow& row : kDTypes) {
    dtypes[std::string(row.name).c_str()] = static_cast<int>(row.dtype);
  }
  module.attr("dtypes") = dtypes;

  nb::dict devices;
  for (const DeviceRow& row : kDevices) {
    devices[std::string(row.name).c_str()] = static_cast<int>(row.type);
  }
  module.attr("devices") = devices;

  nb::dict operations;
  for (const OperationRow& row : kOperations) {
    operations[std::string(row.name).c_str()] = static_cast<int>(row.operation);
  }
  module.attr("operations") = operations;

  nb::dict reduce_ops;
  for (int code = 0; const std::string_view name : kReduceOpNames) {
    reduce_ops[std::string(name).c_str()] = code++;
  }
  module.attr("reduce_ops") = reduce_ops;
}

}  // namespace farandole::python
