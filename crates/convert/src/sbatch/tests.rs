//! Scripts and what becomes of them.

use super::super::{Converted, Level};
use super::*;

fn of(text: &str) -> Converted {
    let mut found = super::super::convert(text, Some("i")).unwrap_or_else(|error| panic!("{error}"));
    found.remove(0)
}

fn lost(one: &Converted) -> Vec<&str> {
    one.notes.iter().filter(|note| note.level == Level::Lost).map(|note| note.field.as_str()).collect()
}

#[test]
fn a_script_with_one_program_becomes_its_command() {
    let one = of(
        "#!/bin/bash\n#SBATCH --job-name=resnet --nodes=2\n#SBATCH --gpus-per-node=8 -t 1-00:00:00\n\
                  #SBATCH --cpus-per-task 4 --ntasks-per-node=2 --mem=64G\n\nexport SEED=1\n\
                  srun --container-image=nvcr.io#nvidia/pytorch:24.01 torchrun --nnodes=2 \\\n  train.py --lr 0.1\n",
    );
    let container = &one.job["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["command"], json!(["torchrun", "train.py", "--lr", "0.1"]));
    assert_eq!(container["image"], "nvcr.io/nvidia/pytorch:24.01");
    assert_eq!(container["env"], json!([{"name": "SEED", "value": "1"}]));
    assert_eq!(container["resources"]["requests"], json!({"cpu": "8", "memory": "65536Mi"}));
    assert_eq!(one.job["spec"]["gpus"], json!({"min": 16, "maxNodes": 2}));
    assert_eq!(
        (one.job["spec"]["maxRunTime"].as_str(), one.job["metadata"]["name"].as_str()),
        (Some("1d"), Some("resnet"))
    );
    assert!(lost(&one).is_empty(), "{:?}", one.notes);
}

#[test]
fn a_script_that_does_more_stays_a_script() {
    let one = of(
        "#!/bin/bash\n#SBATCH --gres=gpu:a100:4 --array=1-5\nmodule load cuda\ncd $SLURM_SUBMIT_DIR\nsrun python train.py\n",
    );
    let command = one.job["spec"]["template"]["spec"]["containers"][0]["command"].clone();
    assert_eq!(command[0], "/bin/bash");
    assert!(command[2].as_str().unwrap().contains("srun python train.py"), "{command}");
    assert_eq!(lost(&one), ["--gres", "--array", "module load cuda", "srun"]);
    assert_eq!(one.job["spec"]["gpus"], json!({"min": 4}));
}

#[test]
fn options_after_the_first_command_do_not_count_and_errors_name_the_line() {
    let one = of("#!/bin/sh\n#SBATCH -G 2\ntrue\n#SBATCH --gpus=many\n");
    assert_eq!(one.job["spec"]["gpus"], json!({"min": 2}));
    for (line, problem) in [
        ("--nodes=many", "--nodes"),
        ("-t soon", "--time"),
        ("--mem=lots", "--mem"),
        ("-Z", "-Z"),
        ("'x", "quote"),
    ] {
        let script = format!("#!/bin/sh\n#SBATCH {line}\n");
        let error = convert(&script, &mut Notes::default()).unwrap_err().to_string();
        assert!(error.starts_with("line 2: ") && error.contains(problem), "{error}");
    }
}

#[test]
fn nodes_may_be_a_range_and_gpus_are_shared_by_them() {
    assert_eq!(
        of("#SBATCH -N 2-4 --gpus-per-node=8\ntrue").job["spec"]["gpus"],
        json!({"min": 16, "max": 32, "maxNodes": 4})
    );
    assert_eq!(of("#SBATCH -N2 --gpus=16\ntrue").job["spec"]["gpus"]["min"], 16);
    assert_eq!(of("#SBATCH -N2 -n8 --gpus-per-task=1\ntrue").job["spec"]["gpus"]["min"], 8);
    assert_eq!(lost(&of("#SBATCH -N 3 --gpus=8\ntrue")), ["--gpus"]);
}

/// Command and variables of a script of one line, and the fields of the lost notes.
fn container(line: &str) -> (Value, Value, Vec<String>) {
    let one = of(&format!("#!/bin/bash\n#SBATCH --gpus=1\n{line}\n"));
    let container = &one.job["spec"]["template"]["spec"]["containers"][0];
    let lost = lost(&one).into_iter().map(str::to_owned).collect();
    (container["command"].clone(), container["env"].clone(), lost)
}

#[test]
fn variables_before_the_program_and_options_of_srun_are_not_the_program() {
    let python = json!(["python", "train.py"]);
    let env = json!([{"name": "OMP_NUM_THREADS", "value": "4"}]);
    assert_eq!(container("OMP_NUM_THREADS=4 srun python train.py"), (python.clone(), env.clone(), vec![]));
    let twice = "export OMP_NUM_THREADS=8\nOMP_NUM_THREADS=4 exec srun python train.py";
    assert_eq!(container(twice), (python.clone(), env, vec![]));
    for line in ["srun --ntasks 4 python train.py", "srun --mpi pmix python train.py", "exec python train.py"]
    {
        assert_eq!(container(line), (python.clone(), Value::Null, vec![]), "{line}");
    }
    let one = of("#!/bin/bash\n#SBATCH --gpus=1\nsrun --container-image a.org#b:1 python train.py\n");
    let container = &one.job["spec"]["template"]["spec"]["containers"][0];
    assert_eq!((&container["command"], &container["image"]), (&python, &json!("a.org/b:1")));
}

#[test]
fn what_only_a_shell_can_do_stays_in_a_shell() {
    for line in [
        "srun --new-option 4 python train.py",
        "srun python train.py ~/data",
        "srun python train.py --fold {0,1}",
    ] {
        let (command, _, lost) = container(line);
        assert_eq!((&command[0], lost), (&json!("/bin/bash"), vec!["srun".to_owned()]), "{line}");
    }
    let (command, _, lost) = container("srun python train.py --config '{a: [1; 2]}'");
    assert_eq!(command, json!(["python", "train.py", "--config", "{a: [1; 2]}"]));
    assert!(lost.is_empty(), "{lost:?}");
}

#[test]
fn one_process_for_each_of_several_nodes_is_lost_where_a_plan_may_use_one_node() {
    let one = of("#!/bin/bash\n#SBATCH -N 4 --gpus-per-node=1\nsrun python train.py\n");
    assert_eq!(lost(&one), ["script"]);
    assert!(lost(&of("#!/bin/bash\n#SBATCH -N 4 --gpus-per-node=1\nsrun torchrun train.py\n")).is_empty());
}
