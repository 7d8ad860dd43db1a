//! The runs on the demo's cluster: jobs are submitted as in the trace, shown, awaited, counted and checked.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use andreas_api::EnergyPolicySpec;
use andreas_api::names;
use andreas_api::slim::SlimTrainingJob;
use andreas_e2e::apply::apply;
use andreas_e2e::cluster::Cluster;
use andreas_e2e::install;
use andreas_e2e::replanned::{Recorded, Recorder};
use andreas_e2e::scenario::Bindings;
use andreas_e2e::scrape::{self, Scrape};
use andreas_e2e::seen::{ClusterHistory, PodView, describe};
use andreas_e2e::workload::{Manifests, WorkloadJob};
use andreas_testbed::Component;
use andreas_testbed::wait::until;
use anyhow::{Context as _, Result, bail};
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use serde_json::{Value, json};

use crate::nodes::Nodes;
use crate::plain::{self, Submitted};
use crate::power::{Meter, Reading, budgeted_watts};
use crate::progress::ProgressPrinter;
use crate::screen::{Head, Jobs, Screen};
use crate::summary::{MeasuredRun, Summary};
use crate::{DemoArgs, NAMESPACE, options, policy, policy_of_plain, say};

/// How long the Jobs' pods may take to go.
const CLEARED: Duration = Duration::from_secs(60);

/// Who runs the jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Run {
    /// Kubernetes alone.
    Plain,
    /// ANDREAS.
    Product,
}

impl Run {
    fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain Kubernetes",
            Self::Product => "ANDREAS",
        }
    }

    fn namespace(self) -> &'static str {
        match self {
            Self::Plain => plain::NAMESPACE,
            Self::Product => NAMESPACE,
        }
    }

    /// About how long it takes once all is installed, s: until the last submission, and then as long as runs of the whole trace took.
    fn usual_s(self, jobs: &[WorkloadJob]) -> f64 {
        let after_the_last = match self {
            Self::Plain => 100.0,
            Self::Product => 130.0,
        };
        jobs.last().map_or(0.0, |job| job.submit_offset_s) + after_the_last
    }

    /// What users have before they submit: a profile for each model and batch, and volumes for checkpoints.
    fn before(self, jobs: &[WorkloadJob], nodes: &Nodes) -> Vec<Value> {
        let (mut profiles, mut claims) = (BTreeMap::new(), Vec::new());
        for job in jobs.iter().filter(|_| self == Self::Product) {
            let Manifests { profile, claim, .. } = nodes.manifests(job);
            profiles.insert(&job.profile, profile);
            claims.push(claim);
        }
        profiles.into_values().chain(claims).map(|object| self.within(object)).collect()
    }

    /// The objects of a job.
    fn objects(self, job: &WorkloadJob, nodes: &Nodes) -> Vec<Value> {
        match self {
            Self::Plain => plain::objects(job, nodes),
            Self::Product => vec![self.within(nodes.manifests(job).job)],
        }
    }

    /// The object, in the run's namespace.
    fn within(self, mut object: Value) -> Value {
        object["metadata"]["namespace"] = json!(self.namespace());
        object
    }
}

/// Runs that have ended.
pub struct Trained {
    /// The cluster, which goes on.
    pub cluster: Cluster,
    /// What the runs came to.
    pub summary: Summary,
    /// Snapshots, where they were to be saved.
    pub recorded: Option<Recorded>,
}

/// Starts the demo's cluster and has these runs on it, the product's last.
///
/// # Errors
/// When anything does not happen as reported, or somebody presses Ctrl-C; nothing of the cluster is left then.
pub async fn all(runs: &[Run], args: &DemoArgs, jobs: &[WorkloadJob], nodes: &Nodes) -> Result<Trained> {
    let began = Instant::now();
    let mut options = options(nodes, args.method);
    if runs.contains(&Run::Plain) {
        options.policy = policy_of_plain();
    }
    // Dropped half way, what has started ends too.
    let mut cluster = tokio::select! {
        cluster = Cluster::start(options) => cluster?,
        _ = tokio::signal::ctrl_c() => bail!("interrupted"),
    };
    say(&format!("ready after {:.1} s", began.elapsed().as_secs_f64()));
    let result = tokio::select! {
        result = one_by_one(&mut cluster, runs, args, jobs, nodes) => Some(result),
        _ = tokio::signal::ctrl_c() => None,
    };
    let Some(result) = result else {
        say("interrupted: all that was started is being ended");
        cluster.stop().await;
        bail!("interrupted");
    };
    match result {
        Ok((summary, recorded)) => Ok(Trained { cluster, summary, recorded }),
        Err(error) => {
            let seen = describe(&cluster.observer.seen());
            let logs = cluster.logs();
            cluster.stop().await;
            Err(error.context(format!("seen last:\n{seen}\n{logs}")))
        }
    }
}

async fn one_by_one(
    cluster: &mut Cluster,
    runs: &[Run],
    args: &DemoArgs,
    jobs: &[WorkloadJob],
    nodes: &Nodes,
) -> Result<(Summary, Option<Recorded>)> {
    let mut ended = Vec::new();
    for (number, run) in runs.iter().enumerate() {
        let title = match runs.len() {
            1 => run.name().to_owned(),
            all => format!("run {} of {all}: {}", number + 1, run.name()),
        };
        say(&format!("{title}, usually {:.0} s", run.usual_s(jobs)));
        let mut training = Training::new(*run, title, args, jobs, nodes);
        let seen = training.train(cluster).await?;
        let measured = seen.measured(cluster, *run, args, jobs.len(), nodes)?;
        ended.push(measured);
        if *run == Run::Product {
            return seen.summary(cluster, ended).await;
        }
        clear(cluster, nodes).await?;
    }
    bail!("no run of the product")
}

/// Deletes the plain Jobs, waits until their GPUs are free, and puts the product's policy in force.
async fn clear(cluster: &Cluster, nodes: &Nodes) -> Result<()> {
    cluster.kubectl(&format!("delete jobs,services --all --namespace {}", plain::NAMESPACE)).await?;
    let free = async || {
        let infos = cluster.machines.nodes().await?;
        let held = infos.iter().flat_map(|node| &node.gpus).any(|gpu| gpu.holder.is_some());
        Ok(!held && cluster.observer.seen().gpus_in_use().values().all(|gpus| *gpus == 0))
    };
    until("the plain Jobs' GPUs are free", CLEARED, free).await?;
    let policy = json!({"apiVersion": "andreas.dev/v1alpha1", "kind": "EnergyPolicy",
        "metadata": {"name": names::DEFAULT_POLICY}, "spec": policy(nodes)});
    cluster.apply(&policy).await?;
    Ok(())
}

/// A run that goes on.
struct Training<'a> {
    run: Run,
    title: String,
    args: &'a DemoArgs,
    jobs: &'a [WorkloadJob],
    nodes: &'a Nodes,
    /// How many of the jobs were submitted.
    submitted: usize,
    /// Those that are plain Jobs, by name.
    plain: BTreeMap<String, Submitted>,
    /// What is to be killed when, s after the first submission.
    kills: Vec<(f64, String)>,
}

/// What was seen of a run.
struct Seen {
    jobs: Jobs,
    reading: Reading,
    budget_violations: u64,
    wall_s: f64,
    recorded: Option<Recorded>,
}

impl<'a> Training<'a> {
    fn new(run: Run, title: String, args: &'a DemoArgs, jobs: &'a [WorkloadJob], nodes: &'a Nodes) -> Self {
        let killed = if run == Run::Product { args.kill.as_slice() } else { &[] };
        let kills = killed.iter().enumerate().map(|(i, k)| (15.0 + 15.0 * i as f64, k.clone())).collect();
        Self { run, title, args, jobs, nodes, submitted: 0, plain: BTreeMap::new(), kills }
    }

    /// Submits as the trace does, tells what happens, and waits for the end.
    async fn train(&mut self, cluster: &mut Cluster) -> Result<Seen> {
        let budget = self.nodes.budget() as f64;
        cluster.make_namespace(self.run.namespace()).await?;
        let client = cluster.testbed.client();
        let recorder = match &self.args.snapshots {
            Some(folder) if self.run == Run::Product => Some(Recorder::start(cluster, folder).await?),
            _ => None,
        };
        for object in self.run.before(self.jobs, self.nodes) {
            apply_until_taken(&client, &object).await?;
        }
        let began = Instant::now();
        let mut teller = ProgressPrinter::new();
        let mut screen = if self.args.plain { None } else { Screen::open() };
        let meter = Meter::start(Arc::clone(&cluster.machines), self.nodes.clone());
        let limit = Duration::from_secs(self.args.limit);
        let mut budget_violations = 0;
        let jobs = loop {
            self.submit_due(&client, began).await?;
            while self.kills.first().is_some_and(|(at, _)| began.elapsed().as_secs_f64() >= *at) {
                let (_, program) = self.kills.remove(0);
                kill_and_restart(cluster, &program, began).await?;
            }
            let at = began.elapsed().as_secs_f64();
            let reading = meter.read();
            let (jobs, ended) = {
                let seen = cluster.observer.seen();
                let jobs = self.views(&seen, &reading);
                let watts = budgeted_watts(&seen, &reading, self.nodes);
                let head = Head { title: &self.title, at, usual: self.run.usual_s(self.jobs), watts, budget };
                match &mut screen {
                    Some(screen) if teller.is_due(Duration::from_millis(500)) => {
                        screen.draw(&jobs, &seen, &reading, head);
                    }
                    Some(_) => {}
                    None => teller.tell(&jobs, &seen, head),
                }
                if watts > budget {
                    budget_violations += 1;
                    if self.run == Run::Product {
                        say(&format!("{at:6.1}s  {watts:.0} W, above the budget"));
                    }
                }
                let ended = jobs.values().filter(|job| is_over(job)).count();
                (jobs, ended)
            };
            if self.submitted == self.jobs.len() && ended == self.jobs.len() && self.kills.is_empty() {
                break jobs;
            }
            if began.elapsed() > limit {
                let open = jobs.iter().filter(|(_, job)| !is_over(job)).map(|(name, job)| {
                    let phase = job.status.as_ref().map(|status| status.phase).unwrap_or_default();
                    format!("{name} {}", phase.as_str())
                });
                let open = open.collect::<Vec<_>>().join(", ");
                bail!(
                    "{}: {ended} of {} jobs ended within {} s; not: {open}",
                    self.title,
                    self.jobs.len(),
                    limit.as_secs()
                );
            }
            let due = self.jobs.get(self.submitted).map_or(f64::MAX, |job| job.submit_offset_s);
            if began.elapsed().as_secs_f64() < due {
                let _ = tokio::time::timeout(Duration::from_millis(200), cluster.observer.changed()).await;
            }
        };
        let wall_s = began.elapsed().as_secs_f64();
        let recorded = match recorder {
            Some(recorder) => Some(recorder.end(cluster).await?),
            None => None,
        };
        Ok(Seen { jobs, reading: meter.read(), budget_violations, wall_s, recorded })
    }

    /// Submits the next job if it is due, as a script of its user would: one after the other.
    async fn submit_due(&mut self, client: &kube::Client, began: Instant) -> Result<()> {
        let next = self.jobs.get(self.submitted);
        let Some(job) = next.filter(|job| began.elapsed().as_secs_f64() >= job.submit_offset_s) else {
            return Ok(());
        };
        for object in self.run.objects(job, self.nodes) {
            // The API server may be the program that is being killed: kubectl's users would try again too.
            let made = apply_until_taken(client, &object).await?;
            if self.run == Run::Plain {
                let created = made.creation_timestamp().context("an object without its time")?.0;
                self.plain.insert(job.name.clone(), Submitted::new(job, self.nodes, created)?);
            }
        }
        self.submitted += 1;
        Ok(())
    }

    /// The run's jobs as last seen, by name.
    fn views(&self, seen: &ClusterHistory, reading: &Reading) -> Jobs {
        match self.run {
            Run::Plain => {
                let view =
                    |(name, one): (&String, &Submitted)| (name.clone(), one.view(seen, reading, self.nodes));
                self.plain.iter().map(view).collect()
            }
            Run::Product => seen.jobs.values().map(|view| (view.job.name_any(), view.job.clone())).collect(),
        }
    }
}

fn is_over(job: &SlimTrainingJob) -> bool {
    job.status.as_ref().is_some_and(|status| status.phase.is_terminal())
}

impl Seen {
    /// The run's figures, if all is as it must be.
    fn measured(
        &self,
        cluster: &Cluster,
        run: Run,
        args: &DemoArgs,
        jobs: usize,
        nodes: &Nodes,
    ) -> Result<MeasuredRun> {
        let policy: EnergyPolicySpec = serde_json::from_value(policy(nodes)).context("the demo's policy")?;
        let ours = |pod: &PodView| pod.pod.namespace().as_deref() == Some(run.namespace());
        let bindings = Bindings::of(cluster, ours)?;
        let measured = MeasuredRun {
            method: match run {
                Run::Plain => plain::METHOD.into(),
                Run::Product => args.method.unwrap_or_default().as_str().into(),
            },
            budget_violations: self.budget_violations,
            pods_bound: bindings.by_extender.union(&bindings.by_others).count(),
            pods_bound_by_extender: bindings.by_extender.len(),
            ..MeasuredRun::of(self.jobs.values(), &self.reading, &policy)
        };
        let mut wrong: Vec<String> = cluster.observer.seen().violations.iter().cloned().collect();
        if measured.jobs != jobs || measured.finished != jobs {
            wrong.push(format!("{} of {jobs} jobs finished", measured.finished));
        }
        match run {
            Run::Plain if !bindings.by_extender.is_empty() => {
                wrong.push(format!("bound by the extender: {:?}", bindings.by_extender));
            }
            Run::Plain => {}
            Run::Product => wrong.extend(self.wrong_of_product(&measured, &bindings)),
        }
        if wrong.is_empty() { Ok(measured) } else { bail!("{}: {}", run.name(), wrong.join("; ")) }
    }

    /// What must be true of the product's run alone, and is not.
    fn wrong_of_product(&self, measured: &MeasuredRun, bindings: &Bindings) -> Vec<String> {
        let mut wrong = Vec::new();
        if !bindings.by_others.is_empty() {
            wrong.push(format!("not bound by the extender: {:?}", bindings.by_others));
        }
        if !bindings.without_allocation.is_empty() {
            wrong.push(format!("bound without an allocation: {:?}", bindings.without_allocation));
        }
        if measured.budget_violations > 0 {
            wrong.push(format!("above the power budget at {} instants", measured.budget_violations));
        }
        let attempts =
            self.jobs.values().filter_map(|job| job.status.as_ref()).flat_map(|status| &status.history);
        let members = attempts
            .filter(|attempt| attempt.started.is_some())
            .map(|attempt| attempt.placement.split(',').count());
        let members: usize = members.sum();
        if measured.pods_bound < members {
            wrong.push(format!("{} pods bound for {members} members that ran", measured.pods_bound));
        }
        wrong
    }

    /// The summary of the product's run, which is the last of these.
    async fn summary(self, cluster: &Cluster, runs: Vec<MeasuredRun>) -> Result<(Summary, Option<Recorded>)> {
        let billed = self.jobs.values().filter_map(|job| job.status.as_ref()?.consumption.as_ref());
        let summary = Summary {
            run: runs.last().cloned().unwrap_or_default(),
            real_nodes: cluster.real_nodes.as_ref().map_or(0, |nodes| nodes.nodes().len()),
            billed_host_kwh: billed.map(|consumption| consumption.host_joules as f64).sum::<f64>() / 3.6e6,
            gpu_hours_at_rest: self.reading.rest_hours,
            joules_saved_by_rest: saved_by_rest(cluster).await?,
            wall_s: self.wall_s,
            runs,
        };
        if let Some(wrong) = summary.billed_too_much() {
            bail!("{wrong}");
        }
        Ok((summary, self.recorded))
    }
}

async fn apply_until_taken(client: &kube::Client, object: &Value) -> Result<DynamicObject> {
    let mut last = None;
    for _ in 0..60 {
        match apply(client, object).await {
            Ok(made) => return Ok(made),
            Err(error) => {
                let refused = error.downcast_ref::<kube::Error>().is_some_and(
                    |e| matches!(e, kube::Error::Api(status) if (400..500).contains(&status.code) && status.code != 429),
                );
                if refused {
                    return Err(error);
                }
                last = Some(error);
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        }
    }
    Err(last.context("never tried")?)
}

/// Sum of what the agents' metrics say that rest saved, J.
async fn saved_by_rest(cluster: &Cluster) -> Result<f64> {
    let found = Scrape::of(cluster).await?;
    let agents = found.jobs.iter().filter(|job| job.name == "andreas-node-agent");
    let mut joules = 0.0;
    for (place, _) in agents.flat_map(|job| &job.targets) {
        let text = scrape::text(*place).await?;
        let values = text.lines().filter(|line| line.starts_with("andreas_gpu_rest_saved_joules_total{"));
        joules += values.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>();
    }
    Ok(joules)
}

async fn kill_and_restart(cluster: &Cluster, program: &str, began: Instant) -> Result<()> {
    say(&format!("{:6.1}s  SIGKILL {program}", began.elapsed().as_secs_f64()));
    let (bed, nodes) = (&cluster.testbed, &*cluster.machines);
    let killed = match program {
        "operator" => install::kill(nodes, "andreas-operator-", "operator").await?,
        "extender" => install::kill(nodes, "andreas-scheduler-", "extender").await?,
        "scheduler" => install::kill(nodes, "andreas-scheduler-", "kube-scheduler").await?,
        "agent" => {
            install::kill(nodes, "andreas-node-agent-", "agent").await?
                + install::kill(nodes, "andreas-node-agent-", "setter").await?
        }
        "api-server" => {
            bed.kill(Component::ApiServer)?;
            // It is away for a moment: others notice.
            tokio::time::sleep(Duration::from_secs(1)).await;
            bed.restart(Component::ApiServer).await?;
            1
        }
        other => bail!("--kill {other}: wanted operator, extender, scheduler, agent or api-server"),
    };
    anyhow::ensure!(killed > 0, "no {program} runs");
    Ok(())
}
