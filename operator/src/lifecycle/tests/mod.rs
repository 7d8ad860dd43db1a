//! Stories of jobs: given a world, when something happens in it, then this is the status and these are the pods.

mod happenings;
mod parts;
mod world;

mod cancel;
mod clocks;
mod edits;
mod failures;
mod gangs;
mod manifests;
mod names;
mod nodes;
mod properties;
mod refusals;
mod restarts;
mod stops;
mod straight;
mod timeouts;
mod unknowns;
