//! What is known of runs that have not happened: time and watts of every configuration, and when a run ends.
//!
//! **In**: profiles and policy from the index and [`energy`](andreas_cluster::energy); a job's spec, status and reports.
//! **Out**: [`Table`]s for the planner, [`Outlook`]s of runs, forecasts for statuses.
//!
//! | file | what |
//! |---|---|
//! | [`fit`] | a fit of the predictor: which profiles count, and the model |
//! | [`learner`] | fits on their own thread; plans use the newest model |
//! | [`table`] | predictions for one job, in the planner's shape |
//! | [`tables`] | cache of tables for the newest model |
//! | [`outlook`] | remaining work of a run and its pace |
//! | [`sampled`] | forecasts by sampling, as the background thread leaves them for plans |
//! | [`forecast`] | start, end and risk of a job for its status |
//!
//! **Never here**: writes, memory of a job (ledger), the decision whether a forecast is worth a write
//! (lifecycle).

pub mod fit;
pub mod forecast;
pub mod learner;
pub mod outlook;
pub mod sampled;
pub mod table;
pub mod tables;
#[cfg(test)]
mod tests;

pub use fit::Fit;
pub use outlook::Outlook;
pub use table::Table;
pub use tables::Tables;
