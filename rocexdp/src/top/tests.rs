//! What is drawn, on a terminal of the test's own.
