//! A small simulated cluster around `step`. It carries actions out as the API server, scheduler and kubelets
//! would, and checks the invariants after every step.

use std::collections::{BTreeMap, BTreeSet};

use andreas_api::slim::{SlimPod, SlimTrainingJob};
use andreas_api::training_job::{AttemptRecord, Prediction, ProfileSource, UsedProfile};
use andreas_api::{Outcome, Phase, Reason, TrainingJobStatus, names};
use andreas_cluster::instants::after;
use andreas_workloads::adopt::Workload;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use serde_json::{Value, json};

pub use super::parts::*;
use crate::*;

/// Seconds since the start of the test.
pub fn at(seconds: i64) -> Timestamp {
    after(Timestamp::from_second(1_780_272_000).unwrap(), seconds)
}

pub struct World {
    pub job: SlimTrainingJob,
    /// The workload of another kind that the job stands for.
    pub workload: Option<Workload>,
    pub pods: BTreeMap<String, SlimPod>,
    pub gone: Vec<(SlimPod, Timestamp)>,
    pub nodes: BTreeMap<String, NodeFact>,
    pub policy: PolicyView,
    pub now: i64,
    pub first_seen: FirstSeen,
    pub decision: Option<DecisionFor>,
    pub creation: Creation,
    pub backoff: Option<Backoff>,
    pub single_node_claim: Option<&'static str>,
    pub dry_run: Option<DryRunResult>,
    /// When the namespace's rules changed.
    pub rules_changed: Option<i64>,
    /// The server's answer to a dry run.
    pub server_refuses: Option<(Reason, String)>,
    /// The server's answer to the next creation.
    pub create: Option<CreationOutcome>,
    /// Pods from this index on are not created; the server answers with this text, which is no verdict.
    pub unmade: Option<(usize, &'static str)>,
    pub forecast: Option<Prediction>,
    pub profile: UsedProfile,
    pub energy: EnergyView,
    pub host_watts: i32,
    /// What kubelets say of pods, by name, to those who ask; of others they say nothing.
    pub kubelet_events: BTreeMap<String, Result<Vec<PodEvent>, EventsUnread>>,
    pub settings: Settings,
    pub last_write: i64,
    pub writes: usize,
    pub dry_runs: usize,
    pub events: Vec<EventNote>,
    pub learned: Vec<ProfileUpdate>,
    pub deleted: Vec<(String, DeleteReason)>,
    pub job_deleted: bool,
    /// Reports up to this instant may be lost.
    pub reports_lost: Option<Timestamp>,
    pub next: Option<Timestamp>,
    pub claim: Option<Claim>,
    pub services: Vec<String>,
    made: u64,
}

impl World {
    /// A job of one GPU; `spec` is merged over it.
    pub fn new(spec: Value) -> Self {
        let mut job = json!({
            "metadata": {
                "name": "bert", "namespace": "team", "uid": "12345678-job", "generation": 1,
                "creationTimestamp": at(0).to_string(),
            },
            "spec": {
                "template": {"spec": {"containers": [{"name": "train", "image": "train:1"}]}},
            },
        });
        json_patch_merge(&mut job["spec"], &spec);
        let nodes = ["n1", "n2", "n3", "n4"].map(|n| (n.to_owned(), node()));
        Self {
            job: serde_json::from_value(job).unwrap(),
            workload: None,
            pods: BTreeMap::new(),
            gone: Vec::new(),
            nodes: nodes.into(),
            policy: PolicyView::default(),
            now: 0,
            first_seen: FirstSeen::new(),
            decision: None,
            creation: Creation::default(),
            backoff: None,
            single_node_claim: None,
            dry_run: None,
            rules_changed: None,
            server_refuses: None,
            create: None,
            unmade: None,
            forecast: None,
            profile: UsedProfile { name: "bert".into(), source: ProfileSource::Program },
            energy: EnergyView::default(),
            host_watts: 0,
            kubelet_events: BTreeMap::new(),
            settings: Settings::default(),
            last_write: -1000,
            writes: 0,
            dry_runs: 0,
            events: Vec::new(),
            learned: Vec::new(),
            deleted: Vec::new(),
            job_deleted: false,
            reports_lost: None,
            next: None,
            claim: None,
            services: Vec::new(),
            made: 0,
        }
    }

    /// The job already runs on these nodes with this many GPUs each.
    pub fn running(spec: Value, nodes: &[&str], gpus: i32) -> Self {
        let mut world = Self::new(spec);
        world.plan_run(nodes, gpus);
        world.bind_all();
        world.run_all();
        assert_eq!(world.phase(), Phase::Running);
        world
    }

    // ---- the operator ----

    pub fn preview(&self) -> Step {
        let asked = self.observe(&KubeletEvents::new(), questions);
        self.observe(&self.answers(asked), step)
    }

    /// UIDs of the pods whose Events are asked for now.
    pub fn asked(&self) -> usize {
        self.observe(&KubeletEvents::new(), questions).len()
    }

    /// When the members of the present attempt stopped.
    pub fn ends(&self) -> AttemptEnds {
        self.observe(&KubeletEvents::new(), attempt_ends).expect("an attempt")
    }

    fn answers(&self, uids: BTreeSet<String>) -> KubeletEvents {
        let all = || self.pods.values().chain(self.gone.iter().map(|(pod, _)| pod));
        let said = |uid: &String| {
            let pod = all().find(|pod| pod.metadata.uid.as_ref() == Some(uid)).expect("a pod of the job");
            let name = pod.metadata.name.as_ref().unwrap();
            self.kubelet_events.get(name).cloned().unwrap_or(Ok(Vec::new()))
        };
        uids.into_iter().map(|uid| (uid.clone(), said(&uid))).collect()
    }

    fn observe<T>(&self, kubelet_events: &KubeletEvents, see: impl FnOnce(&Observed<'_>) -> T) -> T {
        let pods: Vec<&SlimPod> = self.pods.values().collect();
        let gone: Vec<DeletedPodView<'_>> = self
            .gone
            .iter()
            .map(|(last, at)| DeletedPodView { last, at: *at, holders_requested: 0 })
            .collect();
        see(&Observed {
            job: &self.job,
            workload: self.workload.as_ref(),
            pods: &pods,
            deleted: &gone,
            nodes: &self.nodes,
            policy: &self.policy,
            now: at(self.now),
            first_seen: &self.first_seen,
            decision: self.decision.as_ref(),
            host_watts: self.host_watts,
            creation: &self.creation,
            backoff: self.backoff.as_ref(),
            single_node_claim: self.single_node_claim,
            dry_run: self.dry_run.as_ref(),
            failing: false,
            rules_changed: self.rules_changed.map(at),
            forecast: self.forecast.as_ref(),
            profile: &self.profile,
            energy: &self.energy,
            last_write: at(self.last_write),
            last_progress: None,
            reports_lost: self.reports_lost,
            kubelet_events,
            settings: &self.settings,
        })
    }

    /// Steps until nothing changes; fails if that takes too long.
    pub fn step_until_stable(&mut self) {
        for _ in 0..12 {
            if !self.act() {
                return;
            }
        }
        panic!("never settles: {:#?}", self.preview());
    }

    /// Carries out one step. False if there was nothing to do.
    pub fn act(&mut self) -> bool {
        let mut step = self.preview();
        let first = |fact| (self.first_seen.get(&fact).copied().unwrap_or(at(self.now)), fact);
        self.first_seen = step.facts.iter().cloned().map(first).map(|(seen, fact)| (fact, seen)).collect();
        self.next = step.next;
        self.claim = Some(step.claim.clone());
        let mut busy = false;
        if step.status != self.job.status.clone().unwrap_or_default() {
            // Later steps read exactly what was written.
            let text = serde_json::to_value(&step.status).unwrap();
            let read: TrainingJobStatus = serde_json::from_value(text).unwrap();
            assert_eq!(read, step.status, "a status must survive JSON");
            let before = self.status();
            let ended = read.history.last().filter(|record| before.history.last() != Some(*record));
            if let Some(AttemptRecord { outcome, reason, .. }) = ended {
                let known = ENDS.iter().any(|(of, reasons)| {
                    of == outcome && reasons.iter().any(|known| known.as_str() == reason)
                });
                assert!(known, "{outcome:?} for {reason} is not in ENDS");
            }
            self.job.status = Some(read);
            self.writes += 1;
            self.last_write = self.now;
            busy = true;
        }
        self.events.append(&mut step.events);
        self.learned.append(&mut step.learned);
        if let Some(generation) = step.has_room_for() {
            self.creation.record_room(generation, at(self.now));
        }
        for action in step.actions {
            busy |= self.carry_out(action);
        }
        self.check();
        busy
    }

    fn carry_out(&mut self, action: Action) -> bool {
        match action {
            Action::CreateService(service) => {
                let name = service.metadata.name.unwrap();
                if !self.services.contains(&name) {
                    self.services.push(name);
                }
                false
            }
            Action::CreatePods { generation, pods } => {
                self.nothing_else_alive();
                if let Some((from, words)) = self.unmade {
                    let number = |pod: &k8s_openapi::api::core::v1::Pod| -> usize {
                        pod.metadata.labels.as_ref().unwrap()[names::LABEL_INDEX].parse().unwrap()
                    };
                    let made: Vec<_> = pods.into_iter().filter(|pod| number(pod) < from).collect();
                    let any = !made.is_empty();
                    for pod in made {
                        self.admit(serde_json::to_value(pod).unwrap());
                    }
                    self.creation.record_failure(generation, words.into());
                    return any;
                }
                let outcome = self.create.clone().unwrap_or(CreationOutcome::Made);
                let made = outcome == CreationOutcome::Made;
                let refused = matches!(outcome, CreationOutcome::Refused { .. });
                for (index, pod) in pods.into_iter().enumerate() {
                    // Of a refused gang, the first pod is created and deleted again.
                    let name = pod.metadata.name.clone().unwrap();
                    if made || refused && index == 0 {
                        self.admit(serde_json::to_value(pod).unwrap());
                    }
                    if refused && index == 0 {
                        self.remove(&name);
                    }
                }
                self.creation.record_outcome(generation, outcome);
                true
            }
            Action::DeletePod { name, uid, why, .. } => {
                let now = at(self.now);
                let pod = self.pods.get_mut(&name).expect("a pod that is there");
                assert_eq!(pod.metadata.uid.as_ref(), Some(&uid));
                self.deleted.push((name.clone(), why));
                let over = matches!(pod.status.phase.as_str(), "Succeeded" | "Failed");
                let at_once = pod.spec.node_name.is_none() || over;
                if at_once && pod.metadata.finalizers.is_none() {
                    self.remove(&name);
                } else {
                    let grace = pod.spec.termination_grace_period_seconds.unwrap_or(30);
                    let grace = if at_once { 0 } else { grace };
                    pod.metadata.deletion_timestamp = Some(Time(after(now, grace)));
                    pod.metadata.deletion_grace_period_seconds = Some(grace);
                }
                true
            }
            Action::Release { attempt, .. } => {
                let workload = self.workload.as_mut().unwrap();
                assert!(workload.suspended, "it is released once");
                workload.suspended = false;
                let annotations = workload.metadata.annotations.get_or_insert_default();
                annotations.insert(names::ANNOTATION_ADOPTED_ATTEMPT.into(), attempt.to_string());
                true
            }
            Action::Hold => {
                self.workload.as_mut().unwrap().suspended = true;
                true
            }
            Action::Place { name, node, .. } => {
                let pod = self.pods.get_mut(&name).unwrap();
                pod.spec.scheduling_gates.clear();
                let annotations = pod.metadata.annotations.get_or_insert_default();
                annotations.insert(names::GATE_NODE.into(), node);
                true
            }
            Action::Wake { node, value } => {
                let agent = self.nodes.get_mut(&node).unwrap().agent.as_mut().unwrap();
                let since = agent.unanswered_since.filter(|_| agent.wake > agent.awake);
                agent.unanswered_since = since.or(Some(at(self.now)));
                agent.wake = value;
                true
            }
            Action::DryRun { gpus, .. } => {
                self.dry_runs += 1;
                let (at, refusal) = (at(self.now), self.server_refuses.clone());
                self.dry_run = Some(DryRunResult { gpus, smaller: None, at, refusal, admitted: None });
                true
            }
            Action::ForgetDryRuns => false,
            Action::BackOff { message } => {
                let until = at(self.now + 60);
                self.backoff = Some(Backoff { until, message, untried: false });
                true
            }
            Action::DeleteJob { uid, .. } => {
                assert_eq!(self.job.metadata.uid.as_ref(), Some(&uid));
                let news = !self.job_deleted;
                self.job_deleted = true;
                news
            }
        }
    }

    /// A pod as the API server stores it.
    pub fn admit(&mut self, mut pod: Value) {
        let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
        assert!(!self.pods.contains_key(&name), "{name} is there already");
        self.made += 1;
        pod["metadata"]["uid"] = format!("pod-{}", self.made).into();
        pod["metadata"]["creationTimestamp"] = at(self.now).to_string().into();
        let mut pod: SlimPod = serde_json::from_value(pod).unwrap();
        pod.status.phase = "Pending".into();
        self.pods.insert(name, pod);
    }

    /// When pods are created, no pod of another attempt or of an older object of the name can still run.
    /// Exempt are unreachable nodes where the policy restarts jobs.
    fn nothing_else_alive(&self) {
        let attempt = self.status().allocation.unwrap().attempt.to_string();
        let silent = |p: &SlimPod| {
            let node = p.spec.node_name.as_ref().and_then(|n| self.nodes.get(n));
            self.policy.node_loss_restart && node.is_some_and(|f| !f.ready)
        };
        for pod in self.pods.values() {
            let labels = pod.metadata.labels.as_ref().unwrap();
            let owner = pod.metadata.owner_references.as_ref().and_then(|o| o.first());
            let mine = owner.is_some_and(|o| Some(&o.uid) == self.job.metadata.uid.as_ref());
            let refused = pod.spec.node_name.is_none() && pod.metadata.deletion_timestamp.is_some();
            let over = refused || matches!(pod.status.phase.as_str(), "Succeeded" | "Failed");
            let dead = pod.spec.node_name.is_some() && !pod_in_use(pod, &self.nodes);
            let same = mine && labels.get(names::LABEL_ATTEMPT) == Some(&attempt);
            let name = pod.metadata.name.as_ref().unwrap();
            assert!(same || over || dead || silent(pod) || owner.is_none(), "{name} is alive");
        }
    }

    /// Invariants after every step.
    fn check(&self) {
        let status = self.status();
        assert_eq!(
            status.allocation.is_some(),
            matches!(status.phase, Phase::Starting | Phase::Running | Phase::Stopping)
        );
        assert_eq!(status.stop.is_some(), status.phase == Phase::Stopping);
        assert!(
            status.history.len() <= 16 && status.excluded_nodes.len() <= 32 && status.conditions.len() <= 8
        );
        assert!(status.reason.iter().all(|r| Reason::parse(r).is_some()));
        assert!(status.conditions.iter().all(|c| Reason::parse(&c.reason).is_some()));
    }

    // ---- observed state ----

    pub fn status(&self) -> TrainingJobStatus {
        self.job.status.clone().unwrap_or_default()
    }

    pub fn phase(&self) -> Phase {
        self.status().phase
    }

    pub fn reason(&self) -> String {
        self.status().reason.unwrap_or_default()
    }

    pub fn condition(&self, kind: &str) -> Condition {
        let found = status::condition(&self.status().conditions, kind).cloned();
        found.unwrap_or_else(|| panic!("no condition {kind}: {:#?}", self.status()))
    }

    pub fn has_condition(&self, kind: &str) -> bool {
        status::condition(&self.status().conditions, kind).is_some()
    }

    /// Names of the current attempt's pods.
    pub fn members(&self) -> Vec<String> {
        let Some(allocation) = self.status().allocation else { return Vec::new() };
        let attempt = allocation.attempt.to_string();
        let ours = |p: &&SlimPod| {
            let labels = p.metadata.labels.clone().unwrap_or_default();
            labels.get(names::LABEL_ATTEMPT) == Some(&attempt)
                && labels.get(names::LABEL_JOB_UID) == self.job.metadata.uid.as_ref()
        };
        self.pods.values().filter(ours).map(|p| p.metadata.name.clone().unwrap()).collect()
    }

    /// Outcome and reason of the last attempt.
    pub fn last(&self) -> (Outcome, String) {
        let record = self.status().history.last().cloned().expect("an ended attempt");
        (record.outcome, record.reason)
    }
}
