//! Scenarios on the real control plane, and the demo.
//!
//! [`cluster`] starts the whole product on a test bed: control plane ([`beds`] lend it from story to story), the chart's
//! objects, operator, extender, scheduler profile, GPU nodes, as [`options`] say. [`install`] does what a platform team does with helm, also with an
//! [`older`] release. [`observer`] watches from outside, [`seen`] and [`devices`] check what must never happen.
//! [`scenario`] is the frame of a story, [`job`] its words, [`summary`] a run's figures. [`workload`] turns rows of a
//! production trace into TrainingJobs, and [`demo`] runs them. [`pages`] reads the operator's pages. [`scrape`] points
//! a Prometheus at a cluster. [`api`] asks the API server alone, without our programs. [`bench`] measures. [`keeper`]
//! starts programs again that ended, and [`soak`] lets everything happen at random. [`tenant`] is an account that
//! means harm.
//!
//! What must never be here: a shortcut around the API server, a figure that was not measured.

pub mod api;
pub mod apply;
pub mod beds;
pub mod bench;
pub mod chart;
pub mod cluster;
pub mod demo;
pub mod devices;
pub mod install;
pub mod job;
pub mod keeper;
pub mod nodes;
pub mod observer;
pub mod older;
pub mod options;
pub mod pages;
pub mod scenario;
pub mod scrape;
pub mod seen;
pub mod soak;
pub mod storage;
pub mod summary;
pub mod tenant;
pub mod workload;
pub mod wrong_clock;
