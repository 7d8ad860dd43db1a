//! What may happen in a soak, drawn one by one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use andreas_api::phase::Phase;
use andreas_testbed::Component;
use andreas_testbed::faults::{Fault, Rule, RuleId, Select, Share, Verb};
use anyhow::{Context as _, Result};
use kube::api::{Api, ListParams};
use serde_json::json;

use super::Report;
use super::numbers::Numbers;
use crate::cluster::{Cluster, split};
use crate::job::{Job, job};

const NAMESPACES: [&str; 3] = ["red", "green", "blue"];
/// Jobs that wait or run at a time.
const OPEN: usize = 16;
const OPERATOR: &str = "operator-0";

/// What happens next.
#[derive(Clone, Copy, Debug)]
enum Action {
    Submit,
    Reweigh,
    Resize,
    SuspendOrResume,
    Delete,
    DeletePod,
    KillOperator,
    KillExtender,
    KillScheduler,
    KillApiServer,
    Freeze,
    Silence,
    Reboot,
    Faults,
}

/// Each with its weight, and the name it has in the report.
const ACTIONS: [(Action, u64, &str); 14] = [
    (Action::Submit, 40, "submissions"),
    (Action::Reweigh, 8, "weights edited"),
    (Action::Resize, 5, "sizes edited"),
    (Action::SuspendOrResume, 6, "suspends and resumes"),
    (Action::Delete, 4, "deletions"),
    (Action::DeletePod, 3, "pods deleted"),
    (Action::KillOperator, 5, "operator kills"),
    (Action::KillExtender, 3, "extender kills"),
    (Action::KillScheduler, 2, "scheduler kills"),
    (Action::KillApiServer, 1, "API server kills"),
    (Action::Freeze, 3, "programs frozen"),
    (Action::Silence, 4, "nodes silent"),
    (Action::Reboot, 2, "nodes rebooted"),
    (Action::Faults, 14, "faults of calls"),
];

/// Does what is drawn, and remembers what has to be mended.
pub(super) struct Actor {
    numbers: Numbers,
    nodes: Vec<String>,
    jobs: BTreeMap<String, Job>,
    suspended: BTreeSet<String>,
    deleted: BTreeSet<String>,
    rules: Vec<RuleId>,
    done: BTreeMap<&'static str, usize>,
}

impl Actor {
    pub async fn new(c: &Cluster, seed: u64) -> Result<Self> {
        for namespace in NAMESPACES {
            c.make_namespace(namespace).await?;
        }
        let nodes = crate::nodes::client(&c.testbed).nodes().await?;
        Ok(Self {
            numbers: Numbers::new(seed),
            nodes: nodes.into_iter().map(|node| node.name).collect(),
            jobs: BTreeMap::new(),
            suspended: BTreeSet::new(),
            deleted: BTreeSet::new(),
            rules: Vec::new(),
            done: BTreeMap::new(),
        })
    }

    pub fn pause(&mut self, (low, high): (u64, u64)) -> Duration {
        Duration::from_millis(self.numbers.between(low, high))
    }

    /// Jobs that shall end.
    pub fn open(&self, c: &Cluster) -> Vec<String> {
        let seen = c.observer.seen();
        let ended = |key: &String| matches!(seen.phase(key), Phase::Succeeded | Phase::Failed);
        self.jobs.keys().filter(|key| !self.deleted.contains(*key) && !ended(key)).cloned().collect()
    }

    /// Draws one action and does it.
    pub async fn act(&mut self, c: &Cluster) -> Result<()> {
        let total = ACTIONS.iter().map(|(_, weight, _)| weight).sum();
        let mut drawn = self.numbers.between(1, total);
        for (action, weight, name) in ACTIONS {
            if drawn > weight {
                drawn -= weight;
                continue;
            }
            if self.perform(c, action).await.with_context(|| format!("{action:?}"))? {
                *self.done.entry(name).or_insert(0) += 1;
            }
            break;
        }
        Ok(())
    }

    /// `false`: there was nothing to do it to.
    async fn perform(&mut self, c: &Cluster, action: Action) -> Result<bool> {
        let nodes = crate::nodes::client(&c.testbed);
        match action {
            Action::Submit => return self.submit(c).await,
            Action::Reweigh | Action::Resize | Action::SuspendOrResume | Action::Delete => {
                let open = self.open(c);
                let Some(key) = self.numbers.one_of(&open).cloned() else { return Ok(false) };
                self.change(c, action, &key).await?;
            }
            Action::DeletePod => {
                let live: Vec<(String, String)> = {
                    let seen = c.observer.seen();
                    let of_jobs = |p: &&crate::observer::PodView| {
                        p.is_live() && !p.label(andreas_api::names::LABEL_JOB).is_empty()
                    };
                    let name = |p: &crate::observer::PodView| {
                        let meta = &p.pod.metadata;
                        Some((meta.namespace.clone()?, meta.name.clone()?))
                    };
                    seen.pods.values().filter(of_jobs).filter_map(name).collect()
                };
                let Some((namespace, pod)) = self.numbers.one_of(&live) else { return Ok(false) };
                let line = format!("delete pod {pod} -n {namespace} --wait=false --ignore-not-found");
                c.kubectl(&line).await?;
            }
            // The keeper starts it again.
            Action::KillOperator => c.operators[0].process.kill(),
            Action::KillExtender | Action::KillScheduler => {
                let program = if matches!(action, Action::KillExtender) { &c.extender } else { &c.scheduler };
                let program = program.as_ref().context("extender mode")?;
                program.kill();
                tokio::time::sleep(self.pause((100, 3_000))).await;
                program.start_again()?;
            }
            Action::KillApiServer => {
                c.testbed.kill(Component::ApiServer)?;
                tokio::time::sleep(self.pause((100, 2_000))).await;
                c.testbed.restart(Component::ApiServer).await?;
            }
            Action::Freeze => {
                let operator = self.numbers.percent(60);
                let program = if operator { Some(&*c.operators[0].process) } else { c.extender.as_ref() };
                let program = program.context("extender mode")?;
                if program.pause().is_err() {
                    return Ok(false);
                }
                tokio::time::sleep(self.pause((500, 6_000))).await;
                program.resume()?;
            }
            Action::Silence => {
                let Some(node) = self.numbers.one_of(&self.nodes).cloned() else { return Ok(false) };
                nodes.silence(&node).await?;
                tokio::time::sleep(self.pause((500, 8_000))).await;
                nodes.back(&node).await?;
            }
            Action::Reboot => {
                let Some(node) = self.numbers.one_of(&self.nodes).cloned() else { return Ok(false) };
                let down = self.pause((1_000, 6_000));
                nodes.reboot(&node, down).await?;
            }
            Action::Faults => self.fault(c).await?,
        }
        Ok(true)
    }

    async fn submit(&mut self, c: &Cluster) -> Result<bool> {
        if self.open(c).len() >= OPEN {
            return Ok(false);
        }
        let number = self.jobs.len();
        let (gpus, max_nodes) =
            *self.numbers.one_of(&[(1, 1), (1, 1), (2, 1), (4, 1), (8, 2)]).context("sizes")?;
        let namespace = self.numbers.one_of(&NAMESPACES).context("namespaces")?;
        let epochs = i32::try_from(self.numbers.between(4, 40))?;
        let weight = self.numbers.between(1, 100);
        let mut made = job(&format!("job-{number}"))
            .namespace(namespace)
            .gpus(gpus, max_nodes)
            .epochs(epochs, 0.3)
            .spec("weight", json!(weight))
            .spec("deadlineAfter", json!(format!("{}s", self.numbers.between(20, 600))));
        if self.numbers.percent(60) {
            made = made.checkpoint(5);
        }
        if self.numbers.percent(20) {
            made = made.spec("preemption", json!("Never"));
        }
        if self.numbers.percent(15) {
            made = made.env("TRAINER_FAIL_AT", 0.4).env("TRAINER_FAIL_ATTEMPTS", self.numbers.between(1, 2));
        }
        c.submit(&made).await?;
        self.jobs.insert(made.key(), made);
        Ok(true)
    }

    async fn change(&mut self, c: &Cluster, action: Action, key: &str) -> Result<()> {
        match action {
            Action::Reweigh => {
                let weight = self.numbers.between(1, 1000);
                c.edit(key, &json!({"weight": weight})).await
            }
            Action::Resize => {
                let (gpus, max_nodes) =
                    *self.numbers.one_of(&[(1, 1), (2, 1), (4, 1), (8, 2)]).context("sizes")?;
                c.edit(key, &json!({"gpus": {"min": gpus, "max": gpus, "maxNodes": max_nodes}})).await
            }
            Action::SuspendOrResume => {
                let suspend = !self.suspended.remove(key);
                if suspend {
                    self.suspended.insert(key.to_owned());
                }
                c.edit(key, &json!({"suspend": suspend})).await
            }
            _ => {
                let (namespace, name) = split(key)?;
                self.deleted.insert(key.to_owned());
                c.kubectl(&format!("delete trainingjob {name} -n {namespace} --wait=false")).await.map(drop)
            }
        }
    }

    /// Adds a rule that ends by itself, or cuts a program off for a while.
    async fn fault(&mut self, c: &Cluster) -> Result<()> {
        let lasts = self.pause((2_000, 12_000));
        let seed = self.numbers.between(0, u64::MAX - 1);
        let some = Share::PerMille { share: self.numbers.between(100, 500), seed };
        let answer = |status, retry_after| Fault::Answer { status, retry_after };
        let writes = || Select::writes().caller(OPERATOR);
        let rule = match self.numbers.between(0, 8) {
            0 => Rule::new(Select::verbs([Verb::Patch]).caller(OPERATOR), answer(409, None)).share(some),
            1 => Rule::new(Select::all(), answer(429, Some(1))).share(some),
            2 => Rule::new(writes(), Fault::LoseAnswer).share(some),
            3 => Rule::new(writes(), Fault::GatewayTimeout).share(some),
            4 => {
                let namespace = *self.numbers.one_of(&NAMESPACES).context("namespaces")?;
                let pods = Select::verbs([Verb::Create]).resource("pods").namespace(namespace);
                Rule::new(pods, answer(500, None))
            }
            5 => Rule::new(Select::all(), Fault::Delay(Duration::from_millis(self.numbers.between(50, 800)))),
            6 => Rule::new(Select::verbs([Verb::Watch]), Fault::HoldOpenWatches),
            7 => {
                let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(c.testbed.client());
                let list = namespaces.list(&ListParams::default().limit(1)).await?;
                let version = list.metadata.resource_version.context("a list has a version")?.parse()?;
                Rule::new(Select::reads().caller(OPERATOR), Fault::OlderReads { version })
            }
            _ => {
                c.faults()?.cut_off(None);
                tokio::time::sleep(lasts).await;
                c.faults()?.let_in(None);
                return Ok(());
            }
        };
        self.rules.push(c.faults()?.add(rule.lasts(lasts)));
        Ok(())
    }

    /// Ends all that was done to programs, nodes and calls, and resumes what was suspended.
    pub async fn mend(&mut self, c: &Cluster) -> Result<()> {
        c.faults()?.clear();
        let nodes = crate::nodes::client(&c.testbed);
        for node in &self.nodes {
            nodes.back(node).await?;
        }
        for key in std::mem::take(&mut self.suspended) {
            if !self.deleted.contains(&key) {
                c.edit(&key, &json!({"suspend": false})).await?;
            }
        }
        Ok(())
    }

    /// What was done and how the jobs ended.
    pub fn fill(&self, c: &Cluster, report: &mut Report) {
        let seen = c.observer.seen();
        report.submitted = self.jobs.len();
        report.deleted = self.deleted.len();
        for key in self.jobs.keys() {
            report.attempts += seen.status(key).attempts;
            let kept = !self.deleted.contains(key);
            report.succeeded += usize::from(kept && seen.phase(key) == Phase::Succeeded);
            report.failed += usize::from(kept && seen.phase(key) == Phase::Failed);
        }
        report.done = self.done.clone();
        if let Ok(faults) = c.faults() {
            report.calls_met = self.rules.iter().map(|rule| faults.met(*rule)).sum();
        }
    }
}
