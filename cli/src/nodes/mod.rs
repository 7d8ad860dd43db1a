//! `kubectl-andreas nodes`: who holds which GPU, what it draws, which GPUs rest, and what is wrong.

use andreas_runtime::clock;
use anyhow::Result;
use clap::Args;
use jiff::Timestamp;

use crate::cluster::{Cluster, ClusterError, ConnectArgs, block_on};
use crate::inventory::{GpuView, NodeView, Objects};
use crate::name;
use crate::output::{self, Column, Format, OutputArgs, ago, plain, plain_lines, power};

/// Nodes: who holds which GPU, what it draws, which GPUs rest, and what is wrong.
///
/// With a name, the GPUs of that node. Needs the right to list GpuNodes (ClusterRole andreas-power-admin). Nodes, TrainingJobs,
/// and pods of adopted jobs are read where that is allowed: they add names of jobs, and nodes that the operator has not seen.
#[derive(Debug, Args)]
pub struct NodesArgs {
    /// Name of a node: show its GPUs
    #[arg(value_name = "NODE", value_parser = name::object)]
    node: Option<String>,
    /// Only nodes with something wrong
    #[arg(long, conflicts_with = "node")]
    unhealthy: bool,
    #[command(flatten)]
    cluster: ConnectArgs,
    #[command(flatten)]
    output: OutputArgs,
}

const COLUMNS: [Column<NodeView>; 12] = [
    Column::text("NODE", |node| node.name.clone()),
    Column::text("GPU-TYPE", |node| node.gpu_type.clone().unwrap_or_default()),
    Column::number("GPUS", |node| node.gpus.to_string()),
    Column::number("HELD", |node| node.held.to_string()),
    Column::number("RESTING", |node| node.resting.to_string()),
    Column::number("GPU POWER", |node| watts(node.gpu_watts)),
    Column::text("HEALTH", |node| node.health.clone()),
    Column::text("HOLDERS", |node| {
        let holders: Vec<String> =
            node.holders.iter().map(|holder| format!("{} ({})", holder.name(), holder.gpus)).collect();
        holders.join(", ")
    }),
    Column::number("FREE", |node: &NodeView| node.free.to_string()).wide(),
    Column::text("EMPTY SINCE", |node: &NodeView| {
        node.empty_since.map(|at| at.to_string()).unwrap_or_default()
    })
    .wide(),
    Column::text("AGENT", |node: &NodeView| node.agent_version.clone().unwrap_or_default()).wide(),
    Column::text("NOT PLANNED", |node: &NodeView| node.excluded_message.clone().unwrap_or_default()).wide(),
];

/// A draw; nothing where it is not known.
fn watts(watts: Option<i64>) -> String {
    watts.map(|watts| power(watts as f64)).unwrap_or_default()
}

/// A GPU, with the instant that times count from.
struct Device {
    gpu: GpuView,
    now: Timestamp,
}

const DEVICES: [Column<Device>; 7] = [
    Column::text("GPU", |row| row.gpu.uuid.clone()),
    Column::text("STATE", |row| row.gpu.state.to_owned()),
    Column::text("HOLDER", |row| row.gpu.holder.clone().unwrap_or_default()),
    Column::number("POWER", |row| watts(row.gpu.watts.map(i64::from))),
    Column::number("LIMIT", |row| row.gpu.limit_watts.map(|w| power(f64::from(w))).unwrap_or_default()),
    Column::text("HELD SINCE", |row| {
        row.gpu.held_since.map(|at| ago(at.as_second() - row.now.as_second())).unwrap_or_default()
    }),
    Column::text("PROBLEMS", |row| row.gpu.problems.join(", ")),
];

/// Runs the subcommand.
///
/// # Errors
/// When the GpuNodes may not be listed, or there is no such node.
pub fn run(args: &NodesArgs) -> Result<()> {
    let objects = block_on(async {
        let cluster = Cluster::connect(&args.cluster).await?;
        Ok(Objects::read(&cluster).await?)
    })?;
    for note in &objects.notes {
        output::print_error(&format!("note: {}", plain_lines(note)));
    }
    output::print(&text_of(args, objects.views(), clock::now())?)
}

fn text_of(args: &NodesArgs, mut views: Vec<NodeView>, now: Timestamp) -> Result<String> {
    if let Some(name) = &args.node {
        let found = views.into_iter().find(|view| view.name == *name);
        let view = found.ok_or_else(|| ClusterError::NotFound(format!("a node \"{name}\" with GPUs")))?;
        return output::object(
            args.output,
            &view,
            |view| one(view, now),
            |view| format!("gpunode/{}", view.name),
        );
    }
    if args.unhealthy {
        views.retain(|view| !view.healthy);
    }
    let mut text = output::list(args.output, &COLUMNS, &views, |view| format!("gpunode/{}", view.name))?;
    if matches!(args.output.format, Format::Table | Format::Wide) && !views.is_empty() && !args.unhealthy {
        text += &summary(&views);
    }
    Ok(text)
}

fn summary(views: &[NodeView]) -> String {
    let sum = |of: fn(&NodeView) -> u64| views.iter().map(of).sum::<u64>();
    let drawn = views.iter().filter_map(|view| view.gpu_watts).reduce(|all, watts| all + watts);
    let drawn = drawn.map(|watts| format!("; they draw {}", power(watts as f64))).unwrap_or_default();
    format!(
        "{} GPUs on {} nodes: {} held, {} free, {} resting, {} unhealthy{drawn}\n",
        sum(|view| view.gpus),
        views.len(),
        sum(|view| view.held),
        sum(|view| view.free),
        sum(|view| view.resting),
        sum(|view| view.unhealthy),
    )
}

fn one(view: &NodeView, now: Timestamp) -> String {
    let mut text = format!("Node:      {}, {}\n", plain(&view.name), plain(&view.health));
    text += &format!("Type:      {}\n", plain(view.gpu_type.as_deref().unwrap_or("not known")));
    if let Some(message) = &view.excluded_message {
        text += &format!("Excluded:  {}\n", plain(message));
    }
    if view.gpu_watts.is_some() {
        text += &format!("Power:     GPUs {}\n", watts(view.gpu_watts));
    }
    let devices: Vec<Device> = view.devices.iter().map(|gpu| Device { gpu: gpu.clone(), now }).collect();
    text + &output::table(&DEVICES, &devices, true, true)
}

#[cfg(test)]
mod tests;
