//! A small world around `step`: it carries actions out as API server, scheduler and kubelets would, and checks after
//! every step what must hold after any.

use std::collections::BTreeMap;

use andreas_api::slim::{SlimContainerState, SlimPod, SlimRunning, SlimTrainingJob, SlimWaiting};
use andreas_api::training_job::{Prediction, Progress};
use andreas_api::{Outcome, Phase, Reason, TrainingJobStatus, names};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use serde_json::{Value, json};

pub use super::parts::*;
use crate::lifecycle::status::after;
use crate::lifecycle::*;

/// Seconds since the beginning of the story.
pub fn at(seconds: i64) -> Timestamp {
    after(Timestamp::from_second(1_780_272_000).unwrap(), seconds)
}

pub struct World {
    pub job: SlimTrainingJob,
    pub pods: BTreeMap<String, SlimPod>,
    pub gone: Vec<(SlimPod, Timestamp)>,
    pub nodes: BTreeMap<String, NodeFact>,
    pub policy: PolicyView,
    pub now: i64,
    pub decision: Option<DecisionFor>,
    pub creation: Creation,
    pub verdict: Option<Verdict>,
    /// When the rules of the namespace changed.
    pub rules_changed: Option<i64>,
    /// What the server says of a dry run.
    pub dry_run: Option<(Reason, String)>,
    /// What the server says of the next creation.
    pub create: Option<CreationOutcome>,
    pub forecast: Option<Prediction>,
    pub energy: EnergyView,
    pub settings: Settings,
    pub last_write: i64,
    pub writes: usize,
    pub dry_runs: usize,
    pub events: Vec<EventNote>,
    pub learned: Vec<Learned>,
    pub deleted: Vec<(String, DeleteReason)>,
    pub job_deleted: bool,
    pub next: Option<Timestamp>,
    pub claim: Option<Claim>,
    pub services: Vec<String>,
    made: u64,
}

impl World {
    /// A job of one GPU without anything else; `spec` is merged over it.
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
            pods: BTreeMap::new(),
            gone: Vec::new(),
            nodes: nodes.into(),
            policy: PolicyView::default(),
            now: 0,
            decision: None,
            creation: Creation::default(),
            verdict: None,
            rules_changed: None,
            dry_run: None,
            create: None,
            forecast: None,
            energy: EnergyView::default(),
            settings: Settings::default(),
            last_write: -1000,
            writes: 0,
            dry_runs: 0,
            events: Vec::new(),
            learned: Vec::new(),
            deleted: Vec::new(),
            job_deleted: false,
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

    // ---- what happens ----

    pub fn wait(&mut self, seconds: i64) -> &mut Self {
        self.now += seconds;
        self.settle();
        self
    }

    pub fn edit(&mut self, spec: Value) -> &mut Self {
        let mut now = serde_json::to_value(&self.job.spec).unwrap();
        json_patch_merge(&mut now, &spec);
        self.job.spec = serde_json::from_value(now).unwrap();
        *self.job.metadata.generation.as_mut().unwrap() += 1;
        self.settle();
        self
    }

    pub fn plan_run(&mut self, nodes: &[&str], gpus: i32) -> &mut Self {
        self.plan(Planned::Run {
            gpu_type: "A100".into(),
            nodes: nodes.iter().map(|n| (*n).into()).collect(),
            gpus_per_worker: gpus,
            limit_watts: None,
            watts: 300,
        })
    }

    pub fn plan_wait(&mut self, reason: Reason, message: &str) -> &mut Self {
        self.plan(Planned::Wait { reason, message: message.into() })
    }

    /// A plan made from the job as it is now.
    pub fn plan(&mut self, verdict: Planned) -> &mut Self {
        self.decision = Some(DecisionFor { basis: self.status().decisions.unwrap_or(0), verdict });
        self.settle();
        self
    }

    pub fn bind_all(&mut self) -> &mut Self {
        for name in self.members() {
            self.bind(&name);
        }
        self.settle();
        self
    }

    pub fn bind(&mut self, pod: &str) {
        let time = Some(Time(at(self.now)));
        let pod = self.pods.get_mut(pod).unwrap();
        let index: usize = pod.metadata.labels.as_ref().unwrap()[names::LABEL_INDEX].parse().unwrap();
        let nodes = &self.job.status.as_ref().unwrap().allocation.as_ref().unwrap().nodes;
        pod.spec.node_name = Some(nodes[index].clone());
        condition(pod, "PodScheduled", "True", "", time);
    }

    pub fn run_all(&mut self) -> &mut Self {
        let now = Some(Time(at(self.now)));
        for name in self.members() {
            let pod = self.pods.get_mut(&name).unwrap();
            pod.status.phase = "Running".into();
            let running = SlimRunning { started_at: now.clone() };
            *container(pod) = SlimContainerState { running: Some(running), ..SlimContainerState::default() };
        }
        self.settle();
        self
    }

    pub fn waits_with(&mut self, pod: &str, reason: &str, message: &str) -> &mut Self {
        let waiting = SlimWaiting { reason: reason.into(), message: message.into() };
        *container(self.pods.get_mut(pod).unwrap()) =
            SlimContainerState { waiting: Some(waiting), ..SlimContainerState::default() };
        self.settle();
        self
    }

    /// The training container of that pod ends now, and with it the pod.
    pub fn exit(&mut self, pod: &str, code: i32, message: &str) -> &mut Self {
        self.exit_quietly(pod, code, message);
        self.settle();
        self
    }

    /// The same, without the operator looking.
    pub fn exit_quietly(&mut self, pod: &str, code: i32, message: &str) {
        let now = at(self.now);
        let reason = if code == 0 { "Completed" } else { "Error" };
        let ending = self.pods.get_mut(pod).unwrap();
        end(ending, code, reason, message, now);
        if ending.metadata.deletion_timestamp.is_some() {
            self.remove(pod);
        }
    }

    /// The object goes, with whatever it last said.
    pub fn remove(&mut self, pod: &str) {
        let pod = self.pods.remove(pod).unwrap();
        self.gone.push((pod, at(self.now)));
    }

    /// All pods that are being deleted save and leave, with this exit code.
    pub fn leave(&mut self, code: i32) -> &mut Self {
        let leaving: Vec<String> = self
            .pods
            .values()
            .filter(|p| p.metadata.deletion_timestamp.is_some())
            .map(|p| p.metadata.name.clone().unwrap())
            .collect();
        for pod in leaving {
            if self.pods[&pod].status.phase == "Succeeded" || self.pods[&pod].status.phase == "Failed" {
                self.remove(&pod);
            } else {
                self.exit_quietly(&pod, code, "");
            }
        }
        self.settle();
        self
    }

    pub fn evict(&mut self, pod: &str) -> &mut Self {
        let now = at(self.now);
        let pod = self.pods.get_mut(pod).unwrap();
        condition(pod, "DisruptionTarget", "True", "Eviction API: evicting", Some(Time(now)));
        pod.metadata.deletion_timestamp = Some(Time(after(now, 60)));
        pod.metadata.deletion_grace_period_seconds = Some(60);
        self.settle();
        self
    }

    pub fn silence(&mut self, node: &str) -> &mut Self {
        let fact = self.nodes.get_mut(node).unwrap();
        fact.ready = false;
        fact.ready_changed = Some(at(self.now));
        self.settle();
        self
    }

    pub fn report(&mut self, milli_percent: i32) -> &mut Self {
        let attempt = self.status().allocation.as_ref().unwrap().attempt;
        let status = self.job.status.as_mut().unwrap();
        status.progress = Some(Progress {
            milli_percent,
            text: String::new(),
            attempt,
            attempt_start: 0,
            at: Time(at(self.now)),
            millis_per_epoch: 60_000,
            timed_milli_epochs: 0,
            ended: false,
            stepwise: true,
        });
        self.settle();
        self
    }

    /// The operator is killed and starts again: nothing but objects is left.
    pub fn restart_operator(&mut self) -> &mut Self {
        self.gone.clear();
        self.decision = None;
        self.creation = Creation::default();
        self.verdict = None;
        self.settle();
        self
    }

    // ---- the operator ----

    pub fn look(&self) -> Step {
        let pods: Vec<&SlimPod> = self.pods.values().collect();
        let gone: Vec<GonePod<'_>> = self.gone.iter().map(|(last, at)| GonePod { last, at: *at }).collect();
        step(&Observed {
            job: &self.job,
            pods: &pods,
            gone: &gone,
            nodes: &self.nodes,
            policy: &self.policy,
            now: at(self.now),
            decision: self.decision.as_ref(),
            creation: &self.creation,
            verdict: self.verdict.as_ref(),
            rules_changed: self.rules_changed.map(at),
            forecast: self.forecast.as_ref(),
            energy: &self.energy,
            last_write: at(self.last_write),
            last_progress: None,
            settings: &self.settings,
        })
    }

    /// Steps until nothing changes any more; that must be soon.
    pub fn settle(&mut self) {
        for _ in 0..12 {
            if !self.act() {
                return;
            }
        }
        panic!("never settles: {:#?}", self.look());
    }

    /// One step carried out. False where nothing was to be done.
    pub fn act(&mut self) -> bool {
        let mut step = self.look();
        self.next = step.next;
        self.claim = Some(step.claim.clone());
        let mut busy = false;
        if step.status != self.job.status.clone().unwrap_or_default() {
            // What is written is what comes back.
            let text = serde_json::to_value(&step.status).unwrap();
            let read: TrainingJobStatus = serde_json::from_value(text).unwrap();
            assert_eq!(read, step.status, "a status must survive JSON");
            self.job.status = Some(read);
            self.writes += 1;
            self.last_write = self.now;
            busy = true;
        }
        self.events.append(&mut step.events);
        self.learned.append(&mut step.learned);
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
                let outcome = self.create.clone().unwrap_or(CreationOutcome::Made);
                let made = outcome == CreationOutcome::Made;
                let refused = matches!(outcome, CreationOutcome::Refused { .. });
                for (index, pod) in pods.into_iter().enumerate() {
                    // Of a gang that is refused the first is made and taken back.
                    let name = pod.metadata.name.clone().unwrap();
                    if made || refused && index == 0 {
                        self.admit(serde_json::to_value(pod).unwrap());
                    }
                    if refused && index == 0 {
                        self.remove(&name);
                    }
                }
                self.creation = Creation { generation, outcome };
                true
            }
            Action::DeletePod { name, uid, why, .. } => {
                let now = at(self.now);
                let pod = self.pods.get_mut(&name).expect("a pod that is there");
                assert_eq!(pod.metadata.uid.as_ref(), Some(&uid));
                self.deleted.push((name.clone(), why));
                let over = matches!(pod.status.phase.as_str(), "Succeeded" | "Failed");
                if pod.spec.node_name.is_none() || over {
                    self.remove(&name);
                } else {
                    let grace = pod.spec.termination_grace_period_seconds.unwrap_or(30);
                    pod.metadata.deletion_timestamp = Some(Time(after(now, grace)));
                    pod.metadata.deletion_grace_period_seconds = Some(grace);
                }
                true
            }
            Action::Wake { node, value } => {
                self.nodes.get_mut(&node).unwrap().agent.as_mut().unwrap().wake = value;
                true
            }
            Action::DryRun { gpus, .. } => {
                self.dry_runs += 1;
                self.verdict = Some(Verdict { gpus, at: at(self.now), refusal: self.dry_run.clone() });
                true
            }
            Action::DeleteJob { uid } => {
                assert_eq!(self.job.metadata.uid.as_ref(), Some(&uid));
                let news = !self.job_deleted;
                self.job_deleted = true;
                news
            }
        }
    }

    /// A pod as the API server keeps it.
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

    /// No pod of another attempt, nor of an older object of the name, can still run when pods are made, but for those
    /// on silent nodes where the policy is to go on.
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
            let over = matches!(pod.status.phase.as_str(), "Succeeded" | "Failed");
            let dead = pod.spec.node_name.is_some() && !pod_in_use(pod, &self.nodes);
            let same = mine && labels.get(names::LABEL_ATTEMPT) == Some(&attempt);
            let name = pod.metadata.name.as_ref().unwrap();
            assert!(same || over || dead || silent(pod) || owner.is_none(), "{name} is alive");
        }
    }

    /// What holds after every step.
    fn check(&self) {
        let status = self.status();
        assert_eq!(
            status.allocation.is_some(),
            matches!(status.phase, Phase::Starting | Phase::Running | Phase::Stopping)
        );
        assert_eq!(status.stop.is_some(), status.phase == Phase::Stopping);
        assert!(status.history.len() <= 16 && status.avoid.len() <= 32 && status.conditions.len() <= 8);
        assert!(status.reason.iter().all(|r| Reason::parse(r).is_some()));
        assert!(status.conditions.iter().all(|c| Reason::parse(&c.reason).is_some()));
    }

    // ---- what is seen ----

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

    /// Names of the pods of the present attempt.
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
