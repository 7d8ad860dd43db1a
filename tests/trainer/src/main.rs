//! A small training program: trains at a table's pace, reports, checkpoints, stops and resumes.
fn main() {}
