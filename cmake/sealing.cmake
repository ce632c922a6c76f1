# farandole_sealing: the libraries that seal connections between hosts. OpenSSL is linked
# statically, so that a process can also load another OpenSSL, such as that of Python's ssl module.
set(OPENSSL_USE_STATIC_LIBS TRUE)
find_package(OpenSSL 3.0 REQUIRED)
add_library(farandole_sealing INTERFACE)
target_link_libraries(farandole_sealing INTERFACE OpenSSL::SSL)

# On processors with VAES, version 1.3 of the library IPSec_MB is faster than OpenSSL 3.0
# (docs/decisions/0081). Only the static library exports the functions that we use.
find_library(IPSEC_MB libIPSec_MB.a)
find_path(IPSEC_MB_HEADERS intel-ipsec-mb.h)
set(ipsec_mb_version "")
if(IPSEC_MB AND IPSEC_MB_HEADERS)
  file(STRINGS ${IPSEC_MB_HEADERS}/intel-ipsec-mb.h ipsec_mb_version
    REGEX "define IMB_VERSION_STR +\"1\\.3\\.")
endif()
if(ipsec_mb_version AND OPENSSL_VERSION VERSION_LESS 3.1)
  target_include_directories(farandole_sealing SYSTEM INTERFACE ${IPSEC_MB_HEADERS})
  target_compile_definitions(farandole_sealing INTERFACE FARANDOLE_HAS_IPSEC_MB)
  target_link_libraries(farandole_sealing INTERFACE ${IPSEC_MB})
else()
  message(STATUS "libipsec-mb 1.3 was not found, or OpenSSL is 3.1 or newer: OpenSSL alone seals the data")
endif()
