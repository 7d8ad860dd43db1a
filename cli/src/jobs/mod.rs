//! Commands that act on one's own jobs: `suspend`, `resume`, `cancel`, `wait`, `logs`, `submit`.
//!
//! **Flows**: flags in; patches, deletions and creations of TrainingJobs, and logs of their pods out. The operator does the rest.

mod control;
mod logs;
mod submit;
mod wait;

pub use control::{Action, ControlArgs, run as control};
pub use logs::{Line, LogsArgs, lines as log_lines, printable, run as logs};
pub use submit::{SubmitArgs, run as submit};
pub use wait::{WaitArgs, run as wait};
