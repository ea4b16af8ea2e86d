//! `/proc`: what it tells about one process, and whose processes it shows.

pub mod details;
pub mod namespace;
