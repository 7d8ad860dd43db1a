//! What happens to a TrainingJob, line by line, on the real control plane: each scenario has a cluster of its own with
//! a real API server, controller manager and scheduler, our operator and extender under the chart's RBAC, and
//! pretend nodes whose containers are processes.

mod admission;
mod cancel;
mod clocks;
mod connections;
mod crashes;
mod failures;
mod floods;
mod holders;
mod hostile_tenant;
mod labels;
mod looks;
mod nodes;
mod offline;
mod older_objects;
mod placement;
mod predictions;
mod runs;
mod stops;
mod webhooks;
