//! Makes a plan hold, journals what held before, and undoes it.
