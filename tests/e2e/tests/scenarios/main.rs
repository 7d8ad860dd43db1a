//! Our programs on the real control plane. Each scenario has a cluster of its own with a real API server, controller manager and
//! scheduler, our programs under the chart's RBAC, and pretend nodes whose containers are processes.
//!
//! One program holds them all: they mostly wait, so several run side by side (`make e2e`).
#![allow(missing_docs, clippy::unwrap_used)]

mod adoption;
mod agent;
mod api_chart;
mod api_kubectl;
mod api_platforms;
mod api_poison;
mod api_policies;
mod api_rights;
mod api_rules;
mod autoscaler;
mod certificates;
mod faults;
mod install;
mod lifecycle;
mod metrics;
mod notifications;
mod power;
mod python;
mod sleep;
