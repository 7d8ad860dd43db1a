//! The query API of the operator: when a job will be done, why it waits, and what would help.
//!
//! **Contains** the questions ([`request`]) and the answers ([`answer`]) as types, and their paths ([`path`]).
//! Operator and command line use the same types.
//!
//! **Rules of the format**: JSON with camelCase names. Instants are RFC 3339, durations whole seconds, energy
//! whole joules, money millionths of the policy's currency, probabilities whole percent. Jobs of the namespace
//! that was asked about are named; all others are only counted. Fields may be added within a version; readers
//! ignore fields that they do not know.
//!
//! **Not allowed**: clients, clocks, planning.

pub mod answer;
pub mod path;
pub mod request;

pub use answer::{
    Affected, Ahead, Can, Candidate, Change, ChangeKind, CostParts, Decided, Expected, Explanation, Failure,
    Interval, NEVER_SECONDS, NotTried, Obstacle, OthersAffected, Queue, QueuedJob, WhatIf,
};
pub use request::{AddedNodes, CanRequest, ChangedJob, JobObject, WhatIfRequest};

/// API group in the paths.
pub const GROUP: &str = "query.andreas.dev";
/// Version in the paths.
pub const VERSION: &str = "v1alpha1";
/// Header with the caller's token where the API server's proxy forwards the request: the proxy removes
/// `Authorization`. Value as there: `Bearer <token>`.
pub const TOKEN_HEADER: &str = "andreas-authorization";
/// Reason of the refusal (503) of a replica that does not lead: the leader answers.
pub const NOT_LEADING: &str = "NotLeading";
/// Maximum body of a question, bytes.
pub const MAX_BODY: usize = 256 * 1024;
/// Maximum jobs in the answer to a queue request.
pub const MAX_QUEUE: usize = 20_000;
/// The same where the request has no `limit`.
pub const DEFAULT_QUEUE: usize = 500;
/// Maximum jobs in a plan with which an explanation tries changes without being asked to: each costs a plan.
pub const MAX_TRIED: usize = 300;
/// Maximum names of jobs in one list of an answer.
pub const MAX_NAMES: usize = 32;
