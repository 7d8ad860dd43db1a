//! What happens to programs, nodes and clocks in a soak, and how it is mended.

use std::time::{Duration, Instant};

use andreas_testbed::{Component, Process};
use anyhow::{Context as _, Result};
use rustix::process::{Pid, Signal, kill_process};

use super::actions::{Action, Actor, Repair};
use crate::chart::AGENTS;
use crate::cluster::{Clock, Cluster};

/// The farthest that a clock is set, seconds.
const FARTHEST: i64 = 3_600;
/// From the end of a boot until the node is broken again.
const BOOTED: Duration = Duration::from_secs(1);
const CLOCKS: [Clock; 3] = [Clock::Operator, Clock::Extender, Clock::Kubelets];

impl Actor {
    pub(super) async fn break_machine(&mut self, c: &Cluster, action: Action) -> Result<Option<String>> {
        match action {
            // The keeper starts it again.
            Action::KillOperator => c.operators[0].process.kill(),
            Action::KillExtender | Action::KillScheduler => {
                let extender = matches!(action, Action::KillExtender);
                let program = if extender { &c.extender } else { &c.scheduler };
                program.as_ref().context("extender mode")?.kill();
                let mend = if extender { Repair::StartExtender } else { Repair::StartScheduler };
                let time = self.pause((100, 5_000));
                self.mend_after(time, mend);
            }
            Action::KillApiServer => {
                c.testbed.kill(Component::ApiServer)?;
                // How long it is away is drawn from the seed.
                tokio::time::sleep(self.pause((100, 2_000))).await;
                c.testbed.restart(Component::ApiServer).await?;
            }
            Action::KillAgent => return self.kill_agent(c).await,
            Action::Freeze => {
                let operator = self.rng.percent(60);
                let program = if operator { Some(&*c.operators[0].process) } else { c.extender.as_ref() };
                if program.context("extender mode")?.pause().is_err() {
                    return Ok(None);
                }
                let mend = if operator { Repair::ResumeOperator } else { Repair::ResumeExtender };
                let time = self.pause((500, 8_000));
                self.mend_after(time, mend);
                return Ok(Some(format!("{} for {time:?}", if operator { "operator" } else { "extender" })));
            }
            Action::Silence | Action::Reboot | Action::DeleteNode => return self.lose_node(c, action).await,
            _ => {
                let clock = *self.rng.one_of(&CLOCKS).context("clocks")?;
                let seconds = i64::try_from(self.rng.between(60, FARTHEST.unsigned_abs()))?;
                let seconds = *self.rng.one_of(&[seconds, -seconds, 0]).context("signs")?;
                c.set_clock(clock, seconds)?;
                return Ok(Some(format!("{clock:?} {seconds} s")));
            }
        }
        Ok(Some(String::new()))
    }

    async fn lose_node(&mut self, c: &Cluster, action: Action) -> Result<Option<String>> {
        let now = Instant::now();
        self.forced.retain(|_, until| *until > now);
        let usable = |node: &&String| {
            let forced = matches!(action, Action::Silence) && self.forced.contains_key(*node);
            !self.away.contains(*node) && !forced
        };
        let usable: Vec<String> = self.nodes.iter().filter(usable).cloned().collect();
        let Some(node) = self.rng.one_of(&usable).cloned() else { return Ok(None) };
        let nodes = crate::nodes::client(&c.testbed);
        let time = self.pause((1_000, 10_000));
        match action {
            Action::Silence => {
                nodes.silence(&node).await?;
                self.mend_after(time, Repair::Back(node.clone()));
            }
            Action::Reboot => {
                nodes.reboot(&node, time).await?;
                self.mend_after(time + BOOTED, Repair::Booted(node.clone()));
            }
            _ => {
                nodes.delete_node(&node).await?;
                self.mend_after(time, Repair::Restore(node.clone()));
            }
        }
        self.away.insert(node.clone());
        Ok(Some(format!("{node} for {time:?}")))
    }

    /// SIGKILL to one container of one node's agent; its kubelet starts it again.
    async fn kill_agent(&mut self, c: &Cluster) -> Result<Option<String>> {
        let pods = crate::nodes::client(&c.testbed).pods().await?;
        let agents = pods.iter().filter(|pod| pod.namespace == AGENTS && !pod.ended);
        let pids: Vec<i32> = agents.flat_map(|pod| pod.pids.values().copied()).collect();
        let Some(pid) = self.rng.one_of(&pids).and_then(|pid| Pid::from_raw(*pid)) else {
            return Ok(None);
        };
        // One that has just ended is no error.
        Ok(kill_process(pid, Signal::KILL).is_ok().then(|| format!("process {pid}")))
    }

    pub(super) async fn mend(&mut self, c: &Cluster, mend: Repair) -> Result<()> {
        let nodes = crate::nodes::client(&c.testbed);
        match mend {
            Repair::StartExtender => start_if_stopped(c.extender.as_ref())?,
            Repair::StartScheduler => start_if_stopped(c.scheduler.as_ref())?,
            // One that was killed meanwhile is not frozen.
            Repair::ResumeOperator => drop(c.operators[0].process.resume()),
            Repair::ResumeExtender => drop(c.extender.as_ref().map(Process::resume)),
            Repair::Back(node) => {
                nodes.back(&node).await?;
                self.away.remove(&node);
            }
            // It came back by itself.
            Repair::Booted(node) => drop(self.away.remove(&node)),
            Repair::Restore(node) => {
                nodes.restore_node(&node).await?;
                self.away.remove(&node);
            }
            Repair::LetIn => c.faults()?.let_in(None),
        }
        Ok(())
    }

    /// All clocks show the machine's time.
    pub(super) fn right_clocks(&self, c: &Cluster) -> Result<()> {
        CLOCKS.into_iter().try_for_each(|clock| c.set_clock(clock, 0))
    }
}

fn start_if_stopped(program: Option<&Process>) -> Result<()> {
    let program = program.context("extender mode")?;
    // Two faults may have stopped it; the first repair already restarted it.
    if program.pid().is_none() {
        program.start_again()?;
    }
    Ok(())
}
