# The headers of XLA's foreign function interface. They come from the jaxlib that pyproject.toml
# pins. We neither link nor import jaxlib (docs/decisions/0065).
execute_process(COMMAND ${Python_EXECUTABLE} -c
  "import importlib.util as u; print(u.find_spec('jaxlib').submodule_search_locations[0])"
  OUTPUT_VARIABLE jaxlib OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
add_library(farandole_xla_ffi INTERFACE)
target_include_directories(farandole_xla_ffi SYSTEM INTERFACE ${jaxlib}/include)
