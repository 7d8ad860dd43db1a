//! Scenario tests: given a cluster, when something happens, then the status and pods are as expected.

mod parts;
mod world;

mod adopted;
mod adopted_parts;
mod cancel;
mod choices;
mod clocks;
mod edits;
mod events;
mod failures;
mod gangs;
mod kubelets;
mod manifests;
mod names;
mod nodes;
mod properties;
mod refusals;
mod restarts;
mod silence;
mod slurm;
mod stops;
mod straight;
mod timeouts;
mod unknowns;
