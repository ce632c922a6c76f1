// Holds the precompiled headers of the rooms, and those of the tests; see room.cmake.
