# A room is one static library. It may link only the rooms in its row of docs/architecture.md.
#   farandole_room(NAME collective SOURCES a.cc b.cc LINKS base device transport)
#   farandole_test(ROOM collective LABEL unit SOURCES a_test.cc)
# HOT: every call runs code of the room, so clang inlines more. ONE_THREAD: the test starts no
# threads, so the preset tsan leaves it out. TSAN_FILTER and ASAN_FILTER: patterns of GoogleTest.
# The presets tsan and asan run only the tests that match them. The tests in tsan's filter run all
# code that threads share. The tests that asan leaves out run the same code as those in its filter,
# with other sizes.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)

# This option makes a build from scratch faster (docs/decisions/0034). With it, no two sources of a
# room or of a test program may define the same internal name.
option(FARANDOLE_UNITY "Compile several sources of a room or of a test program at once" OFF)

add_library(farandole_flags INTERFACE)
target_compile_options(farandole_flags INTERFACE -Wall -Wextra -Wshadow -Wconversion)

add_library(farandole_public INTERFACE)
target_include_directories(farandole_public INTERFACE ${PROJECT_SOURCE_DIR}/include)
# Only the room base compiles fmt's code, so the other rooms need fmt's headers, but not its
# library.
target_include_directories(farandole_public SYSTEM INTERFACE
  $<TARGET_PROPERTY:fmt::fmt,INTERFACE_INCLUDE_DIRECTORIES>)

function(farandole_room)
  cmake_parse_arguments(ROOM "HOT" "NAME" "SOURCES;LINKS;LIBRARIES" ${ARGN})
  list(TRANSFORM ROOM_LINKS PREPEND farandole_)
  set(room farandole_${ROOM_NAME})
  add_library(${room} STATIC ${ROOM_SOURCES})
  set_target_properties(${room} PROPERTIES UNITY_BUILD ${FARANDOLE_UNITY})
  target_include_directories(${room} PUBLIC ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(${room}
    PUBLIC farandole_public ${ROOM_LINKS} Threads::Threads
    PRIVATE farandole_flags ${ROOM_LIBRARIES})
  if(ROOM_HOT)  # by default, clang inlines less than GCC, and a call of 8 bytes takes 5 % longer
    target_compile_options(${room} PRIVATE
      $<$<CXX_COMPILER_ID:Clang>:SHELL:-mllvm -inline-threshold=600>)
  endif()
endfunction()

if(FARANDOLE_DEVELOPER)
  add_library(farandole_test_flags INTERFACE)
  target_compile_options(farandole_test_flags INTERFACE ${FARANDOLE_TEST_OPTIONS})
  target_link_libraries(farandole_test_flags INTERFACE farandole_flags GTest::gmock_main)
endif()

# A test program that hangs is stopped after three minutes. With sanitizers, or if the build counts
# lines, tests take up to ten times as long, so the limit is longer.
set(FARANDOLE_TEST_TIMEOUT 180)
if(CMAKE_CXX_FLAGS MATCHES "-fsanitize|-fcoverage-mapping")
  set(FARANDOLE_TEST_TIMEOUT 1200)
endif()

# LABEL is unit or sim. A room has one test program per label; a further program needs a NAME.
function(farandole_test)
  cmake_parse_arguments(TEST "ONE_THREAD" "ROOM;LABEL;NAME;TSAN_FILTER;ASAN_FILTER" "SOURCES;LINKS" ${ARGN})
  if(NOT FARANDOLE_DEVELOPER OR (TEST_ONE_THREAD AND FARANDOLE_ONLY_THREADS))
    return()
  endif()
  list(TRANSFORM TEST_LINKS PREPEND farandole_)
  set(name ${TEST_ROOM} ${TEST_NAME})
  list(JOIN name _ name)
  set(program ${name}_${TEST_LABEL}_test)
  add_executable(${program} ${TEST_SOURCES})
  target_link_libraries(${program} PRIVATE farandole_${TEST_ROOM} ${TEST_LINKS}
    farandole_test_flags)
  set_target_properties(${program} PROPERTIES UNITY_BUILD ${FARANDOLE_UNITY})
  add_test(NAME ${TEST_LABEL}.${name} COMMAND ${program})
  # ctest starts the most expensive tests first, so that none of them runs alone at the end. The
  # number of source files is a rough estimate of a test's cost.
  list(LENGTH TEST_SOURCES cost)
  set_tests_properties(${TEST_LABEL}.${name} PROPERTIES
    LABELS ${TEST_LABEL} TIMEOUT ${FARANDOLE_TEST_TIMEOUT} COST ${cost})
  set(filter "")
  if(FARANDOLE_ONLY_THREADS)
    set(filter "${TEST_TSAN_FILTER}")
  elseif(CMAKE_CXX_FLAGS MATCHES "-fsanitize=address")
    set(filter "${TEST_ASAN_FILTER}")
  endif()
  if(filter)
    set_tests_properties(${TEST_LABEL}.${name} PROPERTIES
      ENVIRONMENT "GTEST_FILTER=${filter}" FAIL_REGULAR_EXPRESSION "Running 0 tests")
  endif()
endfunction()
