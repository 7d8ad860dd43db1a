//! Scenarios on the real control plane.
//!
//! [`cluster`] starts the whole product on a test bed: control plane ([`beds`] lend it from scenario to scenario), the chart's
//! objects, operator, extender, scheduler profile, GPU nodes, as [`options`] say. [`install`] does what a platform team does with helm, also with an
//! [`older`] release; [`release`] installs from a release's files. [`observer`] watches from outside, [`seen`] and [`devices`] check what must never happen.
//! [`scenario`] is the frame of a scenario, [`places`] says how many run at a time, [`job`] its words. [`workload`] turns rows of a production trace into
//! TrainingJobs. [`pages`] reads the operator's pages, and [`replanned`] makes its plans again, [`questions`] asks it. [`outputs`] checks files that a long run will write. [`scrape`] points a Prometheus at a cluster. [`api`] asks the
//! API server alone, without our programs; [`rules`] are objects that it accepts or refuses. [`supervisor`] and [`keeper`] start programs again that ended, and [`soak`] lets everything
//! happen at random. [`tenant`] is an account that means harm. The demo (`tests/demo`) is a crate of its own upon this one.
//!
//! What must never be here: a shortcut around the API server, a figure that was not measured.

pub mod adoption;
pub mod api;
pub mod apply;
pub mod beds;
pub mod chart;
pub mod cluster;
pub mod controllers;
pub mod devices;
pub mod fenced;
pub mod install;
pub mod job;
pub mod keeper;
pub mod machines;
pub mod nodes;
pub mod observer;
pub mod older;
pub mod options;
pub mod outputs;
pub mod pages;
pub mod places;
pub mod questions;
pub mod release;
pub mod replanned;
pub mod rules;
pub mod scenario;
pub mod scrape;
pub mod seen;
pub mod soak;
pub mod storage;
pub mod supervisor;
pub mod tenant;
pub mod workload;
pub mod wrong_clock;
