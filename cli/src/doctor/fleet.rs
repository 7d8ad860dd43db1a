//! Checks of nodes and clocks.

use std::collections::{BTreeMap, BTreeSet};

use andreas_api::slim::SlimNode;
use jiff::Timestamp;
use kube::ResourceExt;

use super::facts::Facts;
use super::{Check, State};
use crate::inventory::{NO_GPU_NODE, NodeView, Objects, gpus};
use crate::output::duration;

/// Nodes that are named in one check.
const NAMED: usize = 5;
/// A clock that is further off is worth a warning, s: certificates and leases bear it, records of energy are less exact.
const TOLERANCE: i64 = 5;
/// Age of a kubelet's Lease from which the node counts as not seen, s: kubelets renew it every 10 s.
const STALE: i64 = 60;

/// The oldest driver that the agent is made for, as in docs/installation.md.
const OLDEST_DRIVER: u32 = 535;

/// The checks.
pub fn checks(facts: &Facts, now: Timestamp) -> Vec<Check> {
    let mut checks = Vec::new();
    match &facts.objects {
        Err(error) => checks.push(Check::unread("nodes with GPUs", error)),
        Ok(objects) => {
            nodes(objects, &mut checks);
            checks.extend(drivers(objects));
        }
    }
    checks.push(own_clock(facts));
    checks.push(node_clocks(facts, now));
    checks
}

fn names(views: &[&NodeView]) -> String {
    let mut names: Vec<&str> = views.iter().take(NAMED).map(|view| view.name.as_str()).collect();
    let more = views.len() - names.len();
    let rest = format!("{more} more");
    if more > 0 {
        names.push(&rest);
    }
    names.join(", ")
}

fn nodes(objects: &Objects, checks: &mut Vec<Check>) {
    let views = objects.views();
    let name = "nodes with GPUs";
    let planned: Vec<&NodeView> =
        views.iter().filter(|view| view.excluded.is_none() && view.gpus > 0).collect();
    let total: u64 = planned.iter().map(|view| view.gpus).sum();
    let found = format!("{} of {} are planned, with {total} GPUs", planned.len(), views.len());
    if planned.is_empty() {
        let fix =
            "nodes need nvidia.com/gpu in their allocatable: install NVIDIA's device plug-in or GPU operator";
        checks.push(Check::not(State::Failed, name, found, fix));
    } else {
        checks.push(Check::ok(name, found));
    }
    // The exclusion's own message says what to change.
    let mut excluded: BTreeMap<(&str, &str), Vec<&NodeView>> = BTreeMap::new();
    for view in &views {
        if let (Some(reason), Some(message)) = (&view.excluded, &view.excluded_message) {
            excluded.entry((reason, message)).or_default().push(view);
        }
    }
    for ((reason, message), nodes) in excluded {
        let found = format!("{reason} on {}", names(&nodes));
        if reason == "NotSelected" {
            checks.push(Check::ok("excluded nodes", found));
        } else {
            checks.push(Check::not(State::Warning, "excluded nodes", found, message));
        }
    }
    // A node that the operator has not seen is named below.
    let untyped =
        |view: &&NodeView| view.gpu_type.is_none() && view.excluded.is_none() && view.health != NO_GPU_NODE;
    let without_type: Vec<&NodeView> = views.iter().filter(untyped).collect();
    if !without_type.is_empty() {
        let fix = "install GPU feature discovery, or name your label in EnergyPolicy.spec.typeLabels";
        let found = format!("no label names the GPU type of {}", names(&without_type));
        checks.push(Check::not(State::Failed, "GPU types", found, fix));
    }
    // MIG devices and shares have names of their own.
    let plain = |view: &&NodeView| matches!(view.excluded.as_deref(), None | Some("NoWholeGpus"));
    for view in views.iter().filter(plain) {
        let Some(offered) = objects.node(&view.name).map(gpus) else { continue };
        let there = view.devices.iter().filter(|gpu| gpu.state != "Unhealthy").count() as u64;
        if offered < there {
            let found = format!(
                "the agent on {} sees {there} GPUs that are well, its kubelet offers {offered}",
                view.name
            );
            let fix = "see that NVIDIA's device plug-in runs there; if it does, restart it, then the kubelet";
            checks.push(Check::not(State::Warning, "device plug-in", found, fix));
        }
    }
    let mut ill: BTreeMap<&str, Vec<&NodeView>> = BTreeMap::new();
    for view in views.iter().filter(|view| !view.healthy && view.excluded.is_none()) {
        ill.entry(&view.health).or_default().push(view);
    }
    if ill.is_empty() && !views.is_empty() {
        checks.push(Check::ok("agents and GPUs", "all are well"));
    }
    for (health, nodes) in ill {
        let (state, fix) = match health {
            NO_GPU_NODE | "AgentNotSeen" => (State::Warning, "see that the node agent runs there"),
            _ if health.contains("GPUs") => {
                (State::Warning, "kubectl andreas nodes NODE shows what is wrong")
            }
            _ => (State::Warning, "see the log of the node agent there"),
        };
        checks.push(Check::not(state, "agents and GPUs", format!("{health} on {}", names(&nodes)), fix));
    }
}

/// The driver's version by the labels of GPU feature discovery: the present one, else that of before 0.16.
fn driver(node: &SlimNode) -> Option<String> {
    let label =
        |name: &str| node.labels().get(&format!("nvidia.com/{name}")).filter(|value| !value.is_empty());
    if let Some(full) = label("cuda.driver-version.full") {
        return Some(full.clone());
    }
    let parts = ["major", "minor", "rev"].map(|part| label(&format!("cuda.driver.{part}")));
    let parts: Vec<&str> = parts.into_iter().map_while(|part| part.map(String::as_str)).collect();
    (!parts.is_empty()).then(|| parts.join("."))
}

/// None where nodes may not be read.
fn drivers(objects: &Objects) -> Option<Check> {
    let name = "drivers";
    let views = objects.views();
    let planned: BTreeSet<&str> = views
        .iter()
        .filter(|view| view.excluded.is_none() && view.gpus > 0)
        .map(|view| view.name.as_str())
        .collect();
    let mut versions: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut without = 0;
    for node in objects.nodes.as_ref()?.iter().filter(|node| planned.contains(node.name_any().as_str())) {
        match driver(node) {
            Some(version) => versions.entry(version).or_default().push(node.name_any()),
            None => without += 1,
        }
    }
    let old = |version: &str| version.split('.').next().and_then(|major| major.parse::<u32>().ok());
    let old = |version: &str| old(version).is_some_and(|major| major < OLDEST_DRIVER);
    let on =
        |nodes: &[String]| if nodes.len() == 1 { nodes[0].clone() } else { format!("{} nodes", nodes.len()) };
    let text = |(version, nodes): (&String, &Vec<String>)| format!("{version} on {}", on(nodes));
    let too_old: Vec<String> = versions.iter().filter(|(version, _)| old(version)).map(text).collect();
    if !too_old.is_empty() {
        let fix = format!("install {OLDEST_DRIVER} or newer (docs/installation.md)");
        return Some(Check::not(State::Warning, name, too_old.join(", "), fix));
    }
    let mut found: Vec<String> = versions.iter().map(text).collect();
    if without > 0 {
        found.push(format!("no label names that of {without} nodes: their agents say whether it answers"));
    }
    Some(Check::ok(name, found.join(", ")))
}

fn own_clock(facts: &Facts) -> Check {
    let (name, ahead) = ("clock of this machine", facts.own_clock);
    if ahead.abs() <= TOLERANCE {
        return Check::ok(name, "is that of the API server");
    }
    let how = if ahead > 0 { "ahead of" } else { "behind" };
    let message = format!("{} {how} the API server's", duration(ahead.abs()));
    Check::not(
        State::Warning,
        name,
        message,
        "set it by NTP: times that are shown here count from the API server's clock",
    )
}

/// Kubelets write their own time into their Leases, and agents into their GpuNodes: what is later than the API server's time comes from
/// a clock that is ahead. A clock that is behind looks like a Lease that is old.
fn node_clocks(facts: &Facts, now: Timestamp) -> Check {
    let name = "clocks of nodes";
    let kubelets = match &facts.kubelets {
        Err(error) => return Check::unread(name, error),
        Ok(kubelets) => kubelets,
    };
    let views = facts.objects.as_ref().map(Objects::views).unwrap_or_default();
    let ours = |node: &str| views.is_empty() || views.iter().any(|view| view.name == node);
    let (mut ahead, mut old) = (Vec::new(), Vec::new());
    for (node, renewed) in kubelets.iter().filter(|(node, _)| ours(node)) {
        let age = now.as_second() - renewed.as_second();
        match age {
            age if age < -TOLERANCE => ahead.push(format!("{node} ({})", duration(-age))),
            age if age >= STALE => old.push(format!("{node} ({})", duration(age))),
            _ => {}
        }
    }
    for view in &views {
        let times = view.devices.iter().filter_map(|gpu| gpu.held_since).chain(view.empty_since);
        let latest = times.max().map_or(0, |at| at.as_second() - now.as_second());
        if latest > TOLERANCE && !ahead.iter().any(|known| known.starts_with(&format!("{} ", view.name))) {
            ahead.push(format!("{} ({})", view.name, duration(latest)));
        }
    }
    let some = |nodes: &[String]| nodes.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    if !ahead.is_empty() {
        let message = format!("ahead of the API server's: {}", some(&ahead));
        return Check::not(State::Warning, name, message, "set them by NTP");
    }
    if !old.is_empty() {
        let message = format!("behind, or the kubelet is away: {}", some(&old));
        return Check::not(State::Warning, name, message, "set them by NTP; see kubectl get nodes");
    }
    Check::ok(name, format!("{} kubelets agree with the API server", kubelets.len()))
}
