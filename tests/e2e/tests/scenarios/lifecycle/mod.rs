//! What happens to a TrainingJob, line by line.

mod admission;
mod ask;
mod cancel;
mod clocks;
mod connections;
mod crashes;
mod failures;
mod floods;
mod holders;
mod hostile_tenant;
mod labels;
mod nodes;
mod offline;
mod placement;
mod predictions;
mod runs;
mod slurm;
mod stops;
mod webhooks;
