//! The audit log as figures: when each job was made, bound and ended, and who wrote what.

use std::collections::BTreeMap;

use andreas_testbed::Testbed;
use andreas_testbed::audit::{AuditEvent, AuditLog};
use anyhow::{Context as _, Result};
use jiff::Timestamp;

/// Where all load goes.
pub(super) const NAMESPACE: &str = "bench";
/// Verbs that change something.
const WRITES: [&str; 5] = ["create", "update", "patch", "delete", "deletecollection"];

/// One pod's life.
#[derive(Clone, Copy, Debug)]
pub(super) struct PodTimes {
    /// When its Binding was answered.
    pub bound: f64,
    /// When its kubelet wrote its status last.
    pub reported: f64,
}

/// What the audit log told since the trace began. Times are seconds since 1970.
pub(super) struct Trace {
    log: AuditLog,
    /// When each job's creation was asked for.
    pub created: BTreeMap<String, f64>,
    /// Bound pods by name.
    pub pods: BTreeMap<String, PodTimes>,
    /// Successful writes by who and what.
    pub writes: BTreeMap<(&'static str, String), u64>,
    /// Writes that priority and fairness refused (429).
    pub refused: u64,
    bound_by_job: BTreeMap<String, (usize, f64)>,
}

impl Trace {
    /// From now on.
    pub fn start(testbed: &Testbed) -> Result<Self> {
        Ok(Self {
            log: testbed.audit_log()?.skip_to_end()?,
            created: BTreeMap::new(),
            pods: BTreeMap::new(),
            writes: BTreeMap::new(),
            refused: 0,
            bound_by_job: BTreeMap::new(),
        })
    }

    /// Reads what has come.
    pub fn read(&mut self) -> Result<()> {
        while let Some(event) = self.log.next() {
            self.take(&event?)?;
        }
        Ok(())
    }

    fn take(&mut self, event: &AuditEvent) -> Result<()> {
        if !WRITES.contains(&event.verb.as_str()) || event.object_ref.resource.ends_with("reviews") {
            return Ok(());
        }
        match event.code() {
            200..=299 => {}
            429 => {
                self.refused += 1;
                return Ok(());
            }
            _ => return Ok(()),
        }
        *self.writes.entry((who(event), what(event))).or_insert(0) += 1;
        let object = &event.object_ref;
        if object.namespace != NAMESPACE {
            return Ok(());
        }
        match (object.resource.as_str(), object.subresource.as_str(), event.verb.as_str()) {
            ("trainingjobs" | "jobs", "", "create") => {
                self.created.insert(object.name.clone(), seconds(&event.request_received_timestamp)?);
            }
            ("pods", "binding", "create") => {
                let bound = seconds(&event.stage_timestamp)?;
                self.pods.insert(object.name.clone(), PodTimes { bound, reported: bound });
                let job = self.bound_by_job.entry(job_of(&object.name).to_owned()).or_insert((0, bound));
                *job = (job.0 + 1, job.1.max(bound));
            }
            ("pods", "status", _) if who(event) == "nodes and load" => {
                if let Some(pod) = self.pods.get_mut(&object.name) {
                    pod.reported = seconds(&event.stage_timestamp)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Jobs of which so many pods are bound.
    pub fn jobs_bound(&self, pods: usize) -> usize {
        self.bound_by_job.values().filter(|(bound, _)| *bound >= pods).count()
    }

    /// From each job's creation until its last pod was bound, seconds.
    pub fn latencies(&self) -> Vec<f64> {
        let since = |job: &String| self.created.get(job).copied();
        self.bound_by_job.iter().filter_map(|(job, (_, at))| Some(at - since(job)?)).collect()
    }

    /// When the first job was asked for.
    pub fn began(&self) -> f64 {
        self.created.values().copied().fold(f64::INFINITY, f64::min)
    }

    /// When the first and the last pod were bound.
    pub fn first_and_last_bind(&self) -> (f64, f64) {
        let times = || self.pods.values().map(|pod| pod.bound);
        (times().fold(f64::INFINITY, f64::min), times().fold(0.0, f64::max))
    }

    /// Successful writes in all.
    pub fn written(&self) -> u64 {
        self.writes.values().sum()
    }

    /// Successful writes of a kind of object, dry runs included.
    pub fn written_of(&self, plural: &str) -> u64 {
        let of = self.writes.iter().filter(|((_, what), _)| what.split(' ').nth(1) == Some(plural));
        of.map(|(_, count)| count).sum()
    }

    /// Successful writes of one writer, by what was written.
    pub fn written_by(&self, who: &str) -> BTreeMap<String, u64> {
        let of = self.writes.iter().filter(|((writer, _), _)| *writer == who);
        of.map(|((_, what), count)| (what.clone(), *count)).collect()
    }
}

fn seconds(time: &str) -> Result<f64> {
    let time: Timestamp = time.parse().with_context(|| format!("{time}: not a time"))?;
    Ok(time.as_microsecond() as f64 / 1e6)
}

/// The job of a pod: jobs here have no dash in their names, and every controller puts one after them.
fn job_of(pod: &str) -> &str {
    pod.split('-').next().unwrap_or(pod)
}

fn who(event: &AuditEvent) -> &'static str {
    let (user, agent) = (event.user.username.as_str(), event.user_agent.as_str());
    match () {
        () if agent.starts_with("andreas-operator") => "operator",
        () if agent.starts_with("andreas-extender") => "extender",
        () if agent.starts_with("kube-scheduler") || user == "system:kube-scheduler" => "scheduler",
        () if user.starts_with("system:serviceaccount:kube-system:")
            || agent.starts_with("kube-controller") =>
        {
            "controllers"
        }
        () if user.starts_with("system:") => "other programs",
        () => "nodes and load",
    }
}

fn what(event: &AuditEvent) -> String {
    let object = &event.object_ref;
    let mut text = format!("{} {}", event.verb, object.resource);
    if !object.subresource.is_empty() {
        text = format!("{text}/{}", object.subresource);
    }
    if event.request_uri.contains("dryRun=") {
        text += " (dry run)";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn jobs_are_bound_with_their_last_pod() {
        let line = |verb: &str, resource: &str, sub: &str, name: &str, code: u16, at: &str| {
            serde_json::json!({
                "auditID": "a", "verb": verb, "user": {"username": "u"}, "requestURI": "/x",
                "objectRef": {"resource": resource, "subresource": sub, "name": name, "namespace": NAMESPACE},
                "responseStatus": {"code": code},
                "requestReceivedTimestamp": format!("2026-01-01T00:00:{at}Z"),
                "stageTimestamp": format!("2026-01-01T00:00:{at}Z"),
            })
            .to_string()
        };
        let mut file = tempfile_with(&[
            line("create", "trainingjobs", "", "b1", 201, "01.000000"),
            line("create", "pods", "binding", "b1-1-0", 201, "02.000000"),
            line("create", "pods", "binding", "b1-1-1", 429, "02.500000"),
            line("create", "pods", "binding", "b1-1-1", 201, "03.500000"),
            line("patch", "pods", "status", "b1-1-0", 200, "09.000000"),
        ]);
        let mut trace = Trace {
            log: AuditLog::open(&file.0, 0).unwrap(),
            created: BTreeMap::new(),
            pods: BTreeMap::new(),
            writes: BTreeMap::new(),
            refused: 0,
            bound_by_job: BTreeMap::new(),
        };
        trace.read().unwrap();
        assert_eq!((trace.jobs_bound(2), trace.jobs_bound(3), trace.refused), (1, 0, 1));
        assert_eq!(trace.latencies(), [2.5]);
        assert!((trace.pods["b1-1-0"].reported - trace.pods["b1-1-0"].bound - 7.0).abs() < 1e-6);
        assert_eq!(trace.written(), 4);
        file.1 = true;
    }

    /// A file that goes with the test; the flag only keeps it alive.
    struct Kept(std::path::PathBuf, bool);
    impl Drop for Kept {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    fn tempfile_with(lines: &[String]) -> Kept {
        let path = std::env::temp_dir().join(format!("andreas-bench-trace-{}", std::process::id()));
        let mut file = std::fs::File::create(&path).unwrap();
        for line in lines {
            writeln!(file, "{line}").unwrap();
        }
        Kept(path, false)
    }
}
