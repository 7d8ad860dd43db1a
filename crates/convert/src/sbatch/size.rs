//! Nodes of a script, and the tasks, GPUs, CPUs and memory of one node.

use super::super::draft::Workers;
use super::super::notes::Notes;
use super::options::Options;

/// What a script asks for, by node.
#[derive(Debug, PartialEq)]
pub struct Size {
    /// Nodes, and GPUs of each.
    pub workers: Workers,
    /// Tasks of a node.
    pub tasks: i64,
    /// CPUs of a node.
    pub cpus: Option<i64>,
    /// Memory of a node, MiB.
    pub memory: Option<i64>,
}

impl Size {
    /// The size that the options of sbatch ask for. What cannot be the same on every node is noted.
    pub fn from_options(options: &Options, notes: &mut Notes) -> Self {
        let (min, mut max) = nodes(options);
        let tasks = tasks_on_node(options, min, notes);
        let gpus = gpus_on_node(options, min, tasks, notes);
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
        let cpus = cpus_on_node(options, tasks, gpus, notes);
        let by_gpu = options.memory_per_gpu.and_then(|mib| by_gpu("--mem-per-gpu", mib, gpus, notes));
        let by_cpu = options.memory_per_cpu.and_then(|mib| Some(mib.saturating_mul(cpus?)));
        let memory = options.memory.or(by_gpu).or(by_cpu);
        Self { workers: Workers { min, max, gpus }, tasks, cpus, memory }
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

/// Fewest and most nodes: as given, or as many as the tasks or the GPUs in total need.
fn nodes(options: &Options) -> (i64, i64) {
    if let Some(nodes) = options.nodes {
        return nodes;
    }
    let by_tasks = options.tasks.zip(options.tasks_per_node);
    let by_gpus = total_gpus(options).zip(options.gpus_per_node.filter(|gpus| *gpus > 0));
    let needed = |(total, each)| divided_up(total, each);
    let nodes = by_tasks.map_or(1, needed).max(by_gpus.map_or(1, needed)).max(1);
    (nodes, nodes)
}

/// `--ntasks` is for all nodes; `--ntasks-per-node` counts where it is missing, and so do the GPUs.
fn tasks_on_node(options: &Options, nodes: i64, notes: &mut Notes) -> i64 {
    let by_gpus =
        || Some(options.gpus? / options.gpus_per_task.filter(|gpus| *gpus > 0)?).filter(|tasks| *tasks > 0);
    if let Some(tasks) = options.tasks {
        let each = divided_up(tasks, nodes);
        if tasks % nodes != 0 {
            notes.lost(
                "--ntasks",
                format!("{tasks} tasks cannot be shared evenly by {nodes} nodes: {each} on each"),
            );
        }
        return each;
    }
    options.tasks_per_node.or_else(|| Some(divided_up(by_gpus()?, nodes))).unwrap_or(1)
}

/// The only place that counts the GPUs of a node, whichever option names them.
fn gpus_on_node(options: &Options, nodes: i64, tasks: i64, notes: &mut Notes) -> i64 {
    if let Some(each) = options.gpus_per_node {
        let asked = each.saturating_mul(nodes);
        if let Some(total) = options.gpus.filter(|total| *total != asked) {
            notes.lost(
                "--gpus",
                format!("{total} GPUs are not {each} on each of {nodes} nodes: {asked} are asked for"),
            );
        }
        return each;
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
        return each;
    }
    options.gpus_per_task.map_or(0, |gpus| gpus.saturating_mul(tasks))
}

/// One CPU for each task, unless an option says otherwise, as Slurm has it.
fn cpus_on_node(options: &Options, tasks: i64, gpus: i64, notes: &mut Notes) -> Option<i64> {
    let by_gpus = options.cpus_per_gpu.and_then(|cpus| by_gpu("--cpus-per-gpu", cpus, gpus, notes));
    let asked = options.tasks.or(options.tasks_per_node).or(options.memory_per_cpu).is_some();
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

#[cfg(test)]
mod tests {
    use super::super::super::notes::Level;
    use super::super::options;
    use super::*;

    /// Nodes, GPUs, CPUs and GiB of a node, and the fields of the lost notes.
    fn of(line: &str) -> (i64, i64, Option<i64>, Option<i64>, Vec<String>) {
        let mut notes = Notes::default();
        let options = options::read(&format!("#SBATCH {line}"), &mut notes).unwrap();
        let size = Size::from_options(&options, &mut notes);
        let lost = notes.into_vec().into_iter().filter(|note| note.level == Level::Lost);
        let lost = lost.map(|note| note.field).collect();
        (size.workers.min, size.workers.gpus, size.cpus, size.memory.map(|mib| mib / 1024), lost)
    }

    #[test]
    fn nodes_that_are_not_given_are_counted_from_tasks_or_gpus() {
        let none = Vec::<String>::new;
        assert_eq!(of("--ntasks=8 --ntasks-per-node=4 --gres=gpu:4"), (2, 4, Some(4), None, none()));
        assert_eq!(of("--gpus=16 --gpus-per-node=8"), (2, 8, None, None, none()));
        assert_eq!(of("-n 8 --gpus-per-task=1 --gpus-per-node=4"), (2, 4, Some(4), None, none()));
        assert_eq!(of("-n 6 --ntasks-per-node=4 --gpus-per-task=1"), (2, 3, Some(3), None, none()));
        assert_eq!(of("--gpus=4 --gpus-per-task=2 --mem-per-cpu=1G"), (1, 4, Some(2), Some(2), none()));
    }

    #[test]
    fn cpus_and_memory_by_gpu_count_the_gpus_of_the_tasks() {
        let line = "--ntasks=4 --gpus-per-task=1 --cpus-per-gpu=8 --mem-per-gpu=40G";
        assert_eq!(of(line), (1, 4, Some(32), Some(160), vec![]));
        let lost = vec!["--cpus-per-gpu".to_owned(), "--mem-per-gpu".to_owned()];
        assert_eq!(of("--cpus-per-gpu=8 --mem-per-gpu=40G"), (1, 0, None, None, lost));
    }

    #[test]
    fn a_task_has_one_cpu_where_nothing_else_is_said() {
        assert_eq!(of("--gpus=4 --ntasks=32 --mem-per-cpu=4G"), (1, 4, Some(32), Some(128), vec![]));
        assert_eq!(of("--gpus=4"), (1, 4, None, None, vec![]));
    }

    #[test]
    fn no_gpus_are_no_gpus() {
        for line in ["--gpus-per-node=0", "--gpus=0", "--gres=gpu:0", "--gres=none", "-N 2 -G 0"] {
            let (_, gpus, _, _, lost) = of(line);
            assert_eq!((gpus, lost), (0, vec![]), "{line}");
        }
    }

    #[test]
    fn what_cannot_be_the_same_on_every_node_is_lost() {
        for (line, gpus, lost) in [
            ("-N 3 --gpus=8", 2, "--gpus"),
            ("-N 3 --gpus=2", 1, "--gpus"),
            ("-N 2 --gpus=8 --gpus-per-node=8", 8, "--gpus"),
            ("-N 2 -n 7 --gpus-per-task=1", 4, "--ntasks"),
        ] {
            let (_, found, _, _, notes) = of(line);
            assert_eq!((found, notes), (gpus, vec![lost.to_owned()]), "{line}");
        }
    }

    #[test]
    fn a_total_of_gpus_does_not_grow_with_a_range_of_nodes() {
        let mut notes = Notes::default();
        let options = options::read("#SBATCH -N 2-4 --gpus=8", &mut notes).unwrap();
        assert_eq!(Size::from_options(&options, &mut notes).workers, Workers::fixed(2, 4));
        let fields: Vec<String> = notes.into_vec().into_iter().map(|note| note.field).collect();
        assert_eq!(fields, ["--nodes"]);
    }
}
