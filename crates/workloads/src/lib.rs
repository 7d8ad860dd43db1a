//! Jobs of other kinds: read, adopted, converted.
//!
//! | module | what |
//! |---|---|
//! | [`convert`] | TrainingJobs from the jobs that people have |
//! | [`adopt`] | jobs of other kinds as ANDREAS plans them: what they ask for, how they are released and stopped |
//! | [`slurm`] | what a batch script of Slurm meets in a worker: variables and small programs |
//!
//! **In**: text and objects. **Out**: TrainingJobs, changed objects, what is set in a worker.
//!
//! **Must never be here**: I/O, a clock, or a panic on any input.

pub mod adopt;
pub mod convert;
pub mod slurm;
