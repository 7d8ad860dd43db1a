//! Events of a test: actions of users, plans, schedulers, kubelets and nodes.

use andreas_api::slim::{SlimContainerState, SlimPod, SlimRunning, SlimWaiting};
use andreas_api::training_job::{FirstReport, Progress};
use andreas_api::{Reason, names};
use andreas_cluster::instants::after;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::Value;

use super::world::*;
use crate::*;

impl World {
    pub fn wait(&mut self, seconds: i64) -> &mut Self {
        self.now += seconds;
        self.step_until_stable();
        self
    }

    pub fn edit(&mut self, spec: Value) -> &mut Self {
        let mut now = serde_json::to_value(&self.job.spec).unwrap();
        json_patch_merge(&mut now, &spec);
        self.job.spec = serde_json::from_value(now).unwrap();
        *self.job.metadata.generation.as_mut().unwrap() += 1;
        self.step_until_stable();
        self
    }

    pub fn plan_run(&mut self, nodes: &[&str], gpus: i32) -> &mut Self {
        self.plan_guarded(nodes, gpus, Guard::default())
    }

    pub fn plan_guarded(&mut self, nodes: &[&str], gpus: i32, guard: Guard) -> &mut Self {
        self.plan(Planned::Run {
            gpu_type: "A100".into(),
            nodes: nodes.iter().map(|n| (*n).into()).collect(),
            gpus_per_worker: gpus,
            limit_watts: None,
            watts: 300,
            guard,
        })
    }

    pub fn plan_wait(&mut self, reason: Reason, message: &str) -> &mut Self {
        self.plan(Planned::Wait { reason, message: message.into() })
    }

    /// A plan made from the job's current state.
    pub fn plan(&mut self, planned: Planned) -> &mut Self {
        self.decision = Some(DecisionFor { basis: self.status().decisions.unwrap_or(0), planned });
        self.step_until_stable();
        self
    }

    pub fn bind_all(&mut self) -> &mut Self {
        for name in self.members() {
            self.bind(&name);
        }
        self.step_until_stable();
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
        self.step_until_stable();
        self
    }

    pub fn waits_with(&mut self, pod: &str, reason: &str, message: &str) -> &mut Self {
        let waiting = SlimWaiting { reason: reason.into(), message: message.into() };
        *container(self.pods.get_mut(pod).unwrap()) =
            SlimContainerState { waiting: Some(waiting), ..SlimContainerState::default() };
        self.step_until_stable();
        self
    }

    /// The pod's training container ends now, and the pod with it.
    pub fn exit(&mut self, pod: &str, code: i32, message: &str) -> &mut Self {
        self.exit_quietly(pod, code, message);
        self.step_until_stable();
        self
    }

    /// The same without an operator step.
    pub fn exit_quietly(&mut self, pod: &str, code: i32, message: &str) {
        let now = at(self.now);
        let reason = if code == 0 { "Completed" } else { "Error" };
        let ending = self.pods.get_mut(pod).unwrap();
        end(ending, code, reason, message, now);
        if ending.metadata.deletion_timestamp.is_some() && ending.metadata.finalizers.is_none() {
            self.remove(pod);
        }
    }

    /// The job is deleted; finalizers keep its object.
    pub fn delete_job(&mut self, finalizers: &[&str]) -> &mut Self {
        let metadata = &mut self.job.metadata;
        metadata.finalizers = Some(finalizers.iter().map(|f| (*f).to_owned()).collect());
        metadata.deletion_timestamp.get_or_insert(Time(at(self.now)));
        self.step_until_stable();
        self
    }

    /// Finalizers keep the pod's object.
    pub fn pin(&mut self, pod: &str) -> &mut Self {
        let finalizers = Some(vec!["x.example/y".to_owned()]);
        self.pods.get_mut(pod).unwrap().metadata.finalizers = finalizers;
        self
    }

    /// The pod object disappears with its last status.
    pub fn remove(&mut self, pod: &str) {
        let pod = self.pods.remove(pod).unwrap();
        self.gone.push((pod, at(self.now)));
    }

    /// All pods that are being deleted save and exit with this code.
    pub fn leave(&mut self, code: i32) -> &mut Self {
        let leaving: Vec<String> = self
            .pods
            .values()
            .filter(|p| p.metadata.deletion_timestamp.is_some())
            .map(|p| p.metadata.name.clone().unwrap())
            .collect();
        for pod in leaving {
            let over = matches!(self.pods[&pod].status.phase.as_str(), "Succeeded" | "Failed");
            if over || self.pods[&pod].spec.node_name.is_none() {
                if self.pods[&pod].metadata.finalizers.is_none() {
                    self.remove(&pod);
                }
            } else {
                self.exit_quietly(&pod, code, "");
            }
        }
        self.step_until_stable();
        self
    }

    pub fn evict(&mut self, pod: &str) -> &mut Self {
        self.evict_quietly(pod);
        self.step_until_stable();
        self
    }

    /// An eviction as the API server marks it.
    pub fn evict_for(&mut self, pod: &str, reason: &str) -> &mut Self {
        self.evict_quietly(pod);
        let conditions = &mut self.pods.get_mut(pod).unwrap().status.conditions;
        conditions.last_mut().unwrap().reason = reason.into();
        self.step_until_stable();
        self
    }

    /// The same without an operator step.
    pub fn evict_quietly(&mut self, pod: &str) {
        let now = at(self.now);
        let pod = self.pods.get_mut(pod).unwrap();
        condition(pod, "DisruptionTarget", "True", "Eviction API: evicting", Some(Time(now)));
        pod.metadata.deletion_timestamp = Some(Time(after(now, 60)));
        pod.metadata.deletion_grace_period_seconds = Some(60);
    }

    pub fn silence(&mut self, node: &str) -> &mut Self {
        let fact = self.nodes.get_mut(node).unwrap();
        fact.ready = false;
        fact.ready_changed = Some(at(self.now));
        self.step_until_stable();
        self
    }

    /// The node returns with another boot ID. Started containers are gone; others may start now.
    pub fn boot(&mut self, node: &str, boot: &str) {
        let now = at(self.now);
        let started = |pod: &&SlimPod| {
            pod.spec.node_name.as_deref() == Some(node)
                && pod.status.container_statuses.iter().any(|s| s.state.waiting.is_none())
        };
        let gone = self.gone.iter().map(|(pod, _)| pod);
        let lost = self
            .pods
            .values()
            .filter(started)
            .chain(gone.filter(|pod| pod.spec.node_name.as_deref() == Some(node)));
        let lost: std::collections::BTreeSet<String> =
            lost.filter_map(|pod| pod.metadata.uid.clone()).collect();
        let fact = self.nodes.entry(node.to_owned()).or_insert_with(super::parts::node);
        (fact.ready, fact.ready_changed) = (true, Some(now));
        fact.boot_id = boot.to_owned();
        fact.lost.extend(lost);
    }

    pub fn report(&mut self, milli_percent: i32) -> &mut Self {
        let attempt = self.status().allocation.as_ref().unwrap().attempt;
        let status = self.job.status.as_mut().unwrap();
        let before = status.progress.take().filter(|before| before.attempt == attempt);
        let first = before.and_then(|before| before.first);
        let stepped = (milli_percent > 0).then_some(FirstReport { at: Time(at(self.now)), milli_percent });
        let first = first.or(stepped);
        status.progress = Some(Progress {
            milli_percent,
            attempt,
            attempt_start: 0,
            at: Time(at(self.now)),
            millis_per_epoch: 60_000,
            timed_milli_epochs: 0,
            ended: false,
            stepwise: true,
            first,
        });
        self.step_until_stable();
        self
    }

    /// The operator is killed and restarts with nothing but the objects.
    pub fn restart_operator(&mut self) -> &mut Self {
        self.gone.clear();
        self.first_seen.clear();
        self.decision = None;
        self.creation = Creation::default();
        self.backoff = None;
        self.dry_run = None;
        self.step_until_stable();
        self
    }
}
