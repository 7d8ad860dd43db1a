//! Nodes of a script, and the tasks, GPUs, CPUs and memory of one node.

use super::super::draft::Workers;
use super::super::notes::Notes;
use super::options::Options;
use super::script::Step;

/// What a script asks for, by node.
#[derive(Debug, PartialEq)]
pub struct Size {
    /// Nodes, and GPUs of each.
    pub workers: Workers,
    /// Tasks of a node, where that is not one for each GPU.
    pub tasks: Option<i64>,
    /// CPUs of a node.
    pub cpus: Option<i64>,
    /// Memory of a node, MiB.
    pub memory: Option<i64>,
}

impl Size {
    /// The size that the options of sbatch ask for, or else the steps of srun. `named` are the numbers of GPUs of a node that the script
    /// names. What cannot be the same on every node is noted.
    pub fn new(options: &Options, steps: &[Step], named: &[String], notes: &mut Notes) -> Self {
        let (min, mut max) = nodes(options);
        let tasks = tasks_on_node(options, min, notes);
        let mut gpus = gpus_on_node(options, min, tasks, notes);
        if gpus.is_none() {
            gpus = steps.iter().filter_map(|step| gpus_of_step(&step.size, min, tasks)).max();
            if let Some(gpus) = gpus {
                notes.changed(
                    "srun",
                    format!("asks for {gpus} GPUs of a node, the options of sbatch for none"),
                );
            }
        }
        if options.nodes.is_none() {
            let by_tasks = options.tasks.filter(|tasks| *tasks > 1 && options.tasks_per_node.is_none());
            let more = |tasks: &i64| by_node(options).is_some_and(|gpus| *tasks > gpus) || options.exclusive;
            if let Some(tasks) = by_tasks.filter(more) {
                notes.lost(
                    "--nodes",
                    format!(
                        "is not given, and only the cluster knows how many {tasks} tasks take: one is assumed"
                    ),
                );
            }
        }
        if options.gpus_per_node.is_none() {
            match total_gpus(options) {
                Some(total) if max > min => {
                    notes.changed("--nodes", format!("{total} GPUs in total, on {min} nodes at most"));
                    max = min;
                }
                Some(total @ 2..) if options.nodes.is_none() && min == 1 => notes.changed(
                    "--nodes",
                    format!(
                        "is not given: all {total} GPUs are on one node, unless gpus.maxNodes allows more"
                    ),
                ),
                _ => {}
            }
        }
        if options.exclusive {
            notes.changed(
                "--exclusive",
                "all CPUs and GPUs of the nodes were the job's: their number is not in the options",
            );
        }
        if gpus.is_none() && (options.exclusive || !named.is_empty()) {
            let named = if named.is_empty() {
                String::new()
            } else {
                format!("; the script names {}", named.join(", "))
            };
            notes.lost("gpus", format!("the number of GPUs of a node is not in the options, so one is written{named}: set gpus.min"));
            gpus = Some(1);
        }
        let gpus = gpus.unwrap_or(0);
        let tasks = tasks.unwrap_or(1);
        let cpus = cpus_on_node(options, tasks, gpus, notes);
        let by_gpu = options.memory_per_gpu.and_then(|mib| by_gpu("--mem-per-gpu", mib, gpus, notes));
        let by_cpu = options.memory_per_cpu.and_then(|mib| Some(mib.saturating_mul(cpus?)));
        let memory = options.memory.or(by_gpu).or(by_cpu);
        let by_gpus = gpus / options.gpus_per_task.unwrap_or(1).max(1);
        let workers = Workers { min, max, gpus };
        Self { workers, tasks: (tasks != by_gpus.max(1)).then_some(tasks), cpus, memory }
    }
}

fn divided_up(number: i64, by: i64) -> i64 {
    let by = by.max(1);
    number / by + i64::from(number % by > 0)
}

/// GPUs in total, where the options fix them.
fn total_gpus(options: &Options) -> Option<i64> {
    options.gpus.or_else(|| Some(options.gpus_per_task?.saturating_mul(options.tasks?)))
}

/// GPUs of a node by options that say it.
fn by_node(options: &Options) -> Option<i64> {
    options
        .gpus_per_node
        .or_else(|| Some(options.gpus_per_socket?.saturating_mul(options.sockets.unwrap_or(1))))
}

/// Fewest and most nodes: as given, or as many as the tasks or the GPUs in total need.
fn nodes(options: &Options) -> (i64, i64) {
    if let Some(nodes) = options.nodes {
        return nodes;
    }
    let by_tasks = options.tasks.zip(options.tasks_per_node);
    let by_gpus = total_gpus(options).zip(by_node(options).filter(|gpus| *gpus > 0));
    let needed = |(total, each)| divided_up(total, each);
    let nodes = by_tasks.map_or(1, needed).max(by_gpus.map_or(1, needed)).max(1);
    (nodes, nodes)
}

/// `--ntasks` is for all nodes; `--ntasks-per-node` counts where it is missing, and so do the GPUs.
fn tasks_on_node(options: &Options, nodes: i64, notes: &mut Notes) -> Option<i64> {
    if let Some(tasks) = options.tasks {
        let each = divided_up(tasks, nodes);
        if tasks % nodes != 0 {
            notes.lost(
                "--ntasks",
                format!("{tasks} tasks cannot be shared evenly by {nodes} nodes: {each} on each"),
            );
        }
        return Some(each);
    }
    let gpus = by_node(options).or_else(|| Some(divided_up(options.gpus?, nodes)));
    let by_gpus = || Some(gpus? / options.gpus_per_task.filter(|gpus| *gpus > 0)?).filter(|tasks| *tasks > 0);
    let for_gpus = || Some(gpus?.saturating_mul(options.tasks_per_gpu?));
    options.tasks_per_node.or_else(by_gpus).or_else(for_gpus)
}

/// The only place that counts the GPUs of a node, whichever option names them.
fn gpus_on_node(options: &Options, nodes: i64, tasks: Option<i64>, notes: &mut Notes) -> Option<i64> {
    if let Some(each) = by_node(options) {
        let asked = each.saturating_mul(nodes);
        if let Some(total) = options.gpus.filter(|total| *total != asked) {
            notes.lost(
                "--gpus",
                format!("{total} GPUs are not {each} on each of {nodes} nodes: {asked} are asked for"),
            );
        }
        return Some(each);
    }
    if let Some(total) = options.gpus {
        let each = (total / nodes).max(total.min(1));
        if total % nodes != 0 {
            let asked = each.saturating_mul(nodes);
            notes.lost(
                "--gpus",
                format!("{total} GPUs cannot be shared evenly by {nodes} nodes: {asked} are asked for"),
            );
        }
        return Some(each);
    }
    let by_task = options.gpus_per_task.map(|gpus| gpus.saturating_mul(tasks.unwrap_or(1)));
    by_task.or_else(|| Some(tasks? / options.tasks_per_gpu?).filter(|gpus| *gpus > 0))
}

/// GPUs of a node that a step asks for, with the nodes and tasks of the job where it names none.
fn gpus_of_step(step: &Options, nodes: i64, tasks: Option<i64>) -> Option<i64> {
    let nodes = step.nodes.map_or(nodes, |(min, _)| min);
    let each =
        step.tasks.map(|tasks| divided_up(tasks, nodes)).or(step.tasks_per_node).or(tasks).unwrap_or(1);
    let by_task = || Some(step.gpus_per_task?.saturating_mul(each));
    by_node(step).or_else(|| Some(divided_up(step.gpus?, nodes))).or_else(by_task)
}

/// One CPU for each task, unless an option says otherwise, as Slurm has it; all of the node for a job that has it alone.
fn cpus_on_node(options: &Options, tasks: i64, gpus: i64, notes: &mut Notes) -> Option<i64> {
    let by_gpus = options.cpus_per_gpu.and_then(|cpus| by_gpu("--cpus-per-gpu", cpus, gpus, notes));
    let asked =
        options.tasks.or(options.tasks_per_node).or(options.memory_per_cpu).is_some() && !options.exclusive;
    let each = options.cpus_per_task.or(asked.then_some(1));
    by_gpus.or(each.map(|cpus| cpus.saturating_mul(tasks)))
}

fn by_gpu(option: &str, amount: i64, gpus: i64, notes: &mut Notes) -> Option<i64> {
    if gpus == 0 {
        notes.lost(option, "the script names no GPUs");
        return None;
    }
    Some(amount.saturating_mul(gpus))
}
