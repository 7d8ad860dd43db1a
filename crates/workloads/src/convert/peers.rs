//! Names by which the pods of another controller found themselves and each other: nobody gives them any more.

use serde_json::Value;

use super::notes::Notes;

/// The variable that a Job's controller sets.
const INDEX: &str = "JOB_COMPLETION_INDEX";
/// What the names of their labels and annotations begin with.
const PREFIXES: [&str; 4] =
    ["batch.kubernetes.io/", "jobset.sigs.k8s.io/", "training.kubeflow.org/", "trainer.kubeflow.org/"];

/// Notes each use of them in the spec of a job of this name.
pub fn note(value: &Value, job: &str, path: &str, notes: &mut Notes) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                note(value, job, &format!("{path}.{name}"), notes);
            }
        }
        Value::Array(items) => {
            for (number, item) in items.iter().enumerate() {
                note(item, job, &format!("{path}[{number}]"), notes);
            }
        }
        Value::String(text) => note_text(text, job, path, notes),
        _ => {}
    }
}

fn note_text(text: &str, job: &str, path: &str, notes: &mut Notes) {
    if text.contains(INDEX) {
        notes.lost(path, format!("{INDEX} is not set: use PET_NODE_RANK"));
    }
    if path.ends_with(".fieldPath") && PREFIXES.iter().any(|prefix| text.contains(prefix)) {
        notes.lost(path, format!("{text} is empty: use the variables PET_*, such as $(PET_NODE_RANK)"));
    }
    if let Some(host) = host_of(text, job) {
        notes.lost(path, format!("{host} is no host any more: worker 0 is $(PET_MASTER_ADDR)"));
    }
}

/// A host name of the job's pods within a text: `train-0.train`, `set-workers-0-0.set`, `bert-master-0`.
fn host_of<'a>(text: &'a str, job: &str) -> Option<&'a str> {
    let inside = |c: char| c.is_ascii_alphanumeric() || "-.".contains(c);
    text.split(|c: char| !inside(c)).find(|word| {
        let Some(rest) = word.strip_prefix(job).and_then(|rest| rest.strip_prefix('-')) else { return false };
        let (pod, domain) = rest.split_once('.').unwrap_or((rest, ""));
        let index = pod.rsplit('-').next().unwrap_or_default();
        let numbered = !index.is_empty() && index.bytes().all(|byte| byte.is_ascii_digit());
        numbered && (!domain.is_empty() || ["master-", "worker-"].iter().any(|role| pod.starts_with(role)))
    })
}
