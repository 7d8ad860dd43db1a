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
    // A plan may put 16 GPUs on one node: what a node of 8 had is divided.
    assert_eq!(container["resources"]["requests"], json!({"cpu": "1", "memory": "8192Mi"}));
    assert_eq!(one.job["spec"]["resourcesPer"], "Gpu");
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
    assert_eq!(lost(&one), ["--gres", "--array", "SLURM_SUBMIT_DIR", "module load cuda", "srun"]);
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
    for line in ["srun --ntasks 1 python train.py", "srun --mpi pmix python train.py", "exec python train.py"]
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

/// The container of a script with one GPU, and the fields and texts of its lost notes.
fn script(text: &str) -> (Value, Vec<String>) {
    let one = of(text);
    let noted = one.notes.iter().filter(|note| note.level == Level::Lost);
    let noted = noted.map(|note| format!("{}: {}", note.field, note.text)).collect();
    (one.job["spec"]["template"]["spec"]["containers"][0].clone(), noted)
}

fn changed(one: &Converted, field: &str, part: &str) -> bool {
    one.notes
        .iter()
        .any(|note| note.level == Level::Changed && note.field == field && note.text.contains(part))
}

#[test]
fn sizes_by_task_become_gpus_of_a_node() {
    let one = of("#SBATCH --ntasks=8 --ntasks-per-node=4 --gres=gpu:4\nsrun torchrun train.py");
    assert_eq!(one.job["spec"]["gpus"], json!({"min": 8, "maxNodes": 2}));
    let line = "#SBATCH --ntasks=4 --gpus-per-task=1 --cpus-per-gpu=8 --mem-per-gpu=40G\ntorchrun train.py";
    let one = of(line);
    assert_eq!(one.job["spec"]["gpus"], json!({"min": 4}));
    assert_eq!(script(line).0["resources"]["requests"], json!({"cpu": "32", "memory": "163840Mi"}));
    assert!(changed(&one, "--nodes", "all 4 GPUs are on one node"), "{:?}", one.notes);
}

#[test]
fn gpus_of_several_types_are_counted_together_and_the_mix_is_lost() {
    for option in ["--gres=gpu:a100:2,gpu:v100:2", "--gpus-per-node=a100:2,v100:2"] {
        let line = format!("#SBATCH {option}\ntorchrun train.py");
        let (one, lost) = (of(&line), script(&line).1);
        assert_eq!(one.job["spec"]["gpus"], json!({"min": 4}));
        assert_eq!(lost.len(), 3, "{lost:?}");
        assert!(lost[2].contains("a100 and v100: a run never mixes types, so 4 GPUs"), "{lost:?}");
    }
    assert_eq!(lost(&of("#SBATCH --gres=gpu:2,nvme:1\ntorchrun train.py")), ["--gres"]);
}

#[test]
fn a_program_that_fails_is_not_started_again() {
    for (option, noted) in [("", vec![]), ("--requeue", vec![]), ("--no-requeue", vec!["--no-requeue"])] {
        let one = of(&format!("#!/bin/bash\n#SBATCH --gpus=1 {option}\npython train.py"));
        assert_eq!((&one.job["spec"]["retries"], lost(&one)), (&json!(0), noted));
        assert!(changed(&one, "script", "retries: 0"), "{:?}", one.notes);
    }
}

#[test]
fn processes_of_srun_that_become_one_are_lost_unless_torchrun_starts_them() {
    let options = "#SBATCH -N2 --ntasks-per-node=8 --gpus-per-node=8";
    for program in ["srun ./train.sh", "cd /work\nsrun ./train.sh"] {
        let (_, lost) = script(&format!("#!/bin/bash\n{options}\n{program}\n"));
        let last = lost.last().unwrap();
        assert!(last.starts_with("srun: starts 8 processes on each node"), "{lost:?}");
    }
    for program in ["srun torchrun train.py", "srun --ntasks-per-node=1 ./train.sh", "./train.sh"] {
        let (_, lost) = script(&format!("#!/bin/bash\n{options}\n{program}\n"));
        assert!(lost.is_empty(), "{lost:?}");
    }
    let (_, lost) = script("#!/bin/bash\n#SBATCH --gpus=4\nsrun -n 4 ./train.sh\n");
    assert!(lost[0].starts_with("srun: starts 4 processes"), "{lost:?}");
}

#[test]
fn words_that_only_prepare_a_program_are_left_out() {
    let python = json!(["python", "train.py"]);
    let env = json!([{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]);
    for line in [
        "time srun python train.py",
        "nohup srun time -p python train.py",
        "exec env srun python train.py",
        "time exec python train.py",
    ] {
        assert_eq!(container(line), (python.clone(), Value::Null, vec![]), "{line}");
    }
    for line in ["A=1 time B=2 srun python train.py", "env A=1 srun env B=2 python train.py"] {
        assert_eq!(container(line), (python.clone(), env.clone(), vec![]), "{line}");
    }
    for line in ["env -i python train.py", "nohup A=1 python train.py", "time -o log python train.py"] {
        assert_eq!(container(line).0[0], "/bin/bash", "{line}");
    }
    let timed = of("#!/bin/bash\n#SBATCH --gpus=1\ntime srun python train.py\n");
    assert!(changed(&timed, "script", "time is left out"), "{:?}", timed.notes);
}

#[test]
fn launchers_that_an_image_does_not_have_are_lost() {
    for line in ["numactl -l srun python train.py", "sh -c 'srun python train.py'"] {
        assert_eq!(container(line).2, ["srun"], "{line}");
    }
    for (line, name) in [
        ("srun singularity exec --nv a.sif ./train", "singularity is not in an image"),
        ("apptainer run a.sif", "apptainer is not in an image"),
        ("mpiexec -n 1 ./train", "mpiexec needs a host file"),
    ] {
        let (_, lost) = script(&format!("#!/bin/bash\n#SBATCH --gpus=1\n{line}\n"));
        assert!(lost.len() == 1 && lost[0].contains(name), "{lost:?}");
    }
    let (_, lost) = script("#!/bin/bash\n#SBATCH --gpus=1\ncd /x\nsrun singularity exec a.sif ./train\n");
    assert!(lost.iter().any(|note| note.contains("singularity is not in an image")), "{lost:?}");
}

#[test]
fn every_variable_of_slurm_outside_comments_is_lost() {
    let (_, lost) = script(
        "#!/bin/bash\n#SBATCH --gpus=1\n# $SLURM_NODEID\necho $SLURM_JOBID ${SLURM_ARRAY_TASK_ID} # $SLURM_PROCID\n\
         python train.py --per-node $SLURM_NTASKS_PER_NODE --to $SLURM_CLUSTER_NAME\n",
    );
    assert_eq!(
        lost,
        [
            "SLURM_JOBID: is not set: use ANDREAS_JOB, the name of the job",
            "SLURM_ARRAY_TASK_ID: is not set: use one TrainingJob for each run, with the number in its env",
            "SLURM_NTASKS_PER_NODE: is not set: use LOCAL_WORLD_SIZE, within torchrun",
            "SLURM_CLUSTER_NAME: is not set: only Slurm sets it",
        ]
    );
}

#[test]
fn variables_of_export_are_the_programs() {
    let text = "#!/bin/bash\n#SBATCH --gpus=1 --export=ALL,DATA=/data/imagenet,SEED=0,HOME\n\
                export MASTER_PORT=29500\nsrun --export=ALL,SEED=1,USER python train.py\n";
    let (container, noted) = script(text);
    let env = json!([{"name": "DATA", "value": "/data/imagenet"}, {"name": "SEED", "value": "1"}]);
    assert_eq!((&container["env"], &container["command"]), (&env, &json!(["python", "train.py"])));
    assert_eq!(noted.len(), 2, "{noted:?}");
    assert!(
        noted[0].starts_with("--export: HOME") && noted[1].starts_with("srun --export: USER"),
        "{noted:?}"
    );
    let one = of(text);
    assert!(changed(&one, "MASTER_PORT", "is set by the operator"), "{:?}", one.notes);
    let (container, lost) = script("#!/bin/bash\n#SBATCH --gpus=1 --export=NONE,A=1\ncd /x\n./train\n");
    assert_eq!((&container["env"], lost), (&json!([{"name": "A", "value": "1"}]), vec![]));
}

#[test]
fn a_script_is_given_to_the_interpreter_of_its_first_line() {
    let of = |first: &str, text: &str| script(&format!("#!{first}\n#SBATCH --gpus=1\n{text}"));
    let (container, lost) = of("/usr/bin/env python3", "import my\n\nmy.train()\n");
    assert_eq!(container["command"], json!(["python3", "-c", "import my\n\nmy.train()\n"]));
    assert!(lost.is_empty(), "{lost:?}");
    let text = "cat > run <<E\n#!/bin/sh\n#SBATCH -N 2\nE\nsh run\n";
    let (container, _) = of("/bin/bash -l", text);
    assert_eq!(container["command"], json!(["/bin/bash", "-l", "-c", text]));
    let (container, _) = of("/usr/bin/env sh", "cd /x\n./train\n");
    assert_eq!(container["command"], json!(["sh", "-c", "cd /x\n./train\n"]));
    let (container, lost) = of("/bin/tcsh", "setenv A 1\n./train\n");
    assert_eq!(container["command"], json!(["/bin/tcsh"]));
    assert!(lost.len() == 1 && lost[0].starts_with("script: its text for /bin/tcsh"), "{lost:?}");
}

#[test]
fn sizes_and_short_options_are_read_as_sbatch_reads_them() {
    let one =
        of("#!/bin/bash\n#SBATCH -Qv -W -G 1 --mem=64gb\n#SBATCH -v -M a -B 2:8 -S 2\npython train.py\n");
    let container = &one.job["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["resources"]["requests"], json!({"memory": "65536Mi"}));
    assert_eq!(lost(&one), ["--wait", "--clusters", "--extra-node-info", "--core-spec"]);
    assert_eq!(lost(&of("#SBATCH --gpus-per-node=0\ntrue")), ["nvidia.com/gpu"]);
}

#[test]
fn a_file_is_no_image_and_the_one_of_the_command_is_taken() {
    for (option, image) in [
        ("nvcr.io#nvidia/pytorch:24.01-py3", "nvcr.io/nvidia/pytorch:24.01-py3"),
        ("docker://a/b:1", "a/b:1"),
        ("/images/b.sqsh", "i"),
        ("b.sqsh", "i"),
    ] {
        for (text, field) in [
            (format!("#SBATCH -G 1 --container-image={option}\npython train.py"), "--container-image"),
            (
                format!("#SBATCH -G 1\nsrun --container-image {option} python train.py"),
                "srun --container-image",
            ),
        ] {
            let one = of(&text);
            assert_eq!(one.job["spec"]["template"]["spec"]["containers"][0]["image"], image);
            assert_eq!(lost(&one), if image == "i" { vec![field] } else { vec![] }, "{text}");
        }
    }
}

/// In the command of a pod `$$` stands for `$`: the process's own number would be lost.
#[test]
fn two_dollars_in_a_row_reach_the_shell() {
    let (command, _, _) = container("cd /tmp/$USER.$$\nkill -TERM $$");
    assert_eq!(command[2], "cd /tmp/$USER.$$$$\nkill -TERM $$$$\n");
    let (command, _, _) = container("echo $(date)\n./train");
    assert_eq!(command[2], "echo $(date)\n./train\n");
}
