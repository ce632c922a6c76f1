// Holds the precompiled headers of all tests; see room.cmake.
