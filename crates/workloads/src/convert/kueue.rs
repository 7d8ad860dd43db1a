//! Labels and annotations of Kueue, which does not manage TrainingJobs.

use super::fields::Fields;
use super::notes::Notes;

const PREFIX: &str = "kueue.x-k8s.io/";
/// By this label Kueue starts a job: it is suspended until then.
pub const QUEUE: &str = "kueue.x-k8s.io/queue-name";
/// Limit of its run, s.
pub const LIMIT: &str = "kueue.x-k8s.io/max-exec-time-seconds";

/// Takes Kueue's keys out of labels or annotations.
pub fn take(entries: &mut Fields, notes: &mut Notes) {
    let keys: Vec<String> = entries.names().filter(|name| name.starts_with(PREFIX)).map(Into::into).collect();
    for key in keys {
        entries.lost(&key, notes, "Kueue does not manage TrainingJobs: weight and deadline order them");
    }
}
