//! Scripts and what becomes of them.

use super::super::{Converted, Level, convert as convert_file};
use super::*;

fn read(text: &str) -> Result<Converted, String> {
    let made = convert_file(text, Some("i"), &[]);
    made.map(|mut made| made.remove(0)).map_err(|error| error.to_string())
}

fn of(text: &str) -> Converted {
    read(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// A script with these options and this text.
fn script(options: &str, text: &str) -> Converted {
    of(&format!("#!/bin/bash\n#SBATCH {options}\n{text}\n"))
}

/// Fields and texts of the lost notes.
fn lost(one: &Converted) -> Vec<String> {
    let lost = one.notes.iter().filter(|note| note.level == Level::Lost);
    lost.map(|note| format!("{}: {}", note.field, note.text)).collect()
}

fn container(one: &Converted) -> &Value {
    &one.job["spec"]["template"]["spec"]["containers"][0]
}

fn gpus(one: &Converted) -> &Value {
    &one.job["spec"]["gpus"]
}

#[test]
fn a_script_stays_as_it_is_and_its_options_become_fields() {
    let text = "#!/bin/bash\n#SBATCH --job-name=resnet --nodes=2 # both\n#SBATCH --gpus-per-node=8 -t 1-00:00:00\n\
                #SBATCH --cpus-per-task 4 --ntasks-per-node=2 --mem=64G --export=ALL,A=$$\n\nsrun torchrun train.py | tee log.$$\n";
    let one = of(text);
    let spec = &one.job["spec"];
    assert_eq!(container(&one)["command"], json!(["/bin/bash", "-c", text.replace("$$", "$$$$")]));
    let env = json!([{"name": "A", "value": "$$$$"}, {"name": "SLURM_NTASKS_PER_NODE", "value": "2"}]);
    assert_eq!(container(&one)["env"], env);
    // A plan may put 16 GPUs on one node: what a node of 8 had is divided.
    assert_eq!(container(&one)["resources"]["requests"], json!({"cpu": "1", "memory": "8192Mi"}));
    assert_eq!((&spec["resourcesPer"], &spec["rendezvous"]), (&json!("Gpu"), &json!("Slurm")));
    assert_eq!((gpus(&one), &spec["retries"]), (&json!({"min": 16, "maxNodes": 2}), &json!(0)));
    assert_eq!(
        (&spec["maxRunTime"], &one.job["metadata"]["name"]),
        (&json!(duration_text(86_400)), &json!("resnet"))
    );
    assert!(lost(&one).is_empty(), "{:?}", one.notes);
}

#[test]
fn a_script_written_on_windows_gets_the_line_ends_of_unix() {
    let text = "#!/bin/bash -l\n#SBATCH --gpus=2\nsrun torchrun \\\n  train.py --epochs 3\n";
    let (unix, windows) = (of(text), of(&text.replace('\n', "\r\n")));
    assert_eq!(windows.job, unix.job);
    assert_eq!(container(&windows)["command"], json!(["/bin/bash", "-l", "-c", text]));
    let said = |one: &Converted| one.notes.iter().filter(|note| note.text.contains("Windows")).count();
    assert_eq!((said(&windows), said(&unix)), (1, 0));
    assert!(lost(&windows).is_empty(), "{:?}", windows.notes);
}

#[test]
fn a_text_goes_to_the_interpreter_of_its_first_line_with_its_arguments() {
    for (first, words) in [
        ("/usr/bin/env python3", json!(["/usr/bin/env", "python3", "-c"])),
        ("/bin/bash -l", json!(["/bin/bash", "-l", "-c"])),
        ("/bin/sh", json!(["/bin/sh", "-c"])),
    ] {
        let text = format!("#!{first}\n#SBATCH --gpus=1\ntrue\n");
        let command = container(&of(&text))["command"].clone();
        assert_eq!(
            command.as_array().unwrap()[..command.as_array().unwrap().len() - 1],
            *words.as_array().unwrap()
        );
    }
    let made = convert_file("#SBATCH -G1\necho $1", Some("i"), &["a b".into(), "$$".into()]).unwrap();
    assert_eq!(
        container(&made[0])["command"],
        json!(["/bin/bash", "-c", "#SBATCH -G1\necho $1", "sbatch", "a b", "$$$$"])
    );
    assert!(lost(&made[0]).is_empty());
    let refused = read("#!/bin/tcsh\n#SBATCH --gpus=1\n").unwrap_err();
    assert!(refused.starts_with("line 1: #!/bin/tcsh"), "{refused}");
}

#[test]
fn gpus_are_counted_whichever_option_names_them() {
    for (options, text, expected) in [
        ("-N2 --gpus=16", "srun x", json!({"min": 16, "maxNodes": 2})),
        ("-N 2-4 --gpus-per-node=8", "srun x", json!({"min": 16, "max": 32, "maxNodes": 4})),
        ("-N2 -n8 --gpus-per-task=1", "srun x", json!({"min": 8, "maxNodes": 2})),
        ("--ntasks=8 --ntasks-per-node=4 --gres=gpu:4", "srun x", json!({"min": 8, "maxNodes": 2})),
        ("-N 2 --gpus-per-socket=2 --sockets-per-node=2", "srun x", json!({"min": 8, "maxNodes": 2})),
        ("--tres-per-task=cpu:16,gres/gpu:4", "srun x", json!({"min": 4})),
        ("-n 8 --ntasks-per-gpu=2", "srun x", json!({"min": 4})),
        ("-G 2 -N 1", "srun x", json!({"min": 2})),
        ("--nodes=4", "srun --ntasks-per-node=1 --gpus-per-node=8 x", json!({"min": 32, "maxNodes": 4})),
        ("--nodes=4", "srun --gres gpu:2 x\nsrun --gres=gpu:a100:4 y", json!({"min": 16, "maxNodes": 4})),
        ("--nodes=2", "srun -G 8 x", json!({"min": 8, "maxNodes": 2})),
        ("--nodes=2", "srun --ntasks=8 --gpus-per-task=1 x", json!({"min": 8, "maxNodes": 2})),
        ("--nodes=2 --ntasks-per-node=4", "srun --gpus-per-task 1 x", json!({"min": 8, "maxNodes": 2})),
        (
            "--nodes=2",
            "N=4\nARGS=(--gpus-per-node=$N)\nsrun --gpus-per-node=$N x",
            json!({"min": 8, "maxNodes": 2}),
        ),
    ] {
        let one = script(options, text);
        assert_eq!(gpus(&one), &expected, "{options} {text}");
        assert!(lost(&one).is_empty(), "{options} {text} {:?}", lost(&one));
    }
    assert_eq!(lost(&script("-N 3 --gpus=8", "srun x")).len(), 1);
    let none = lost(&script("-t 10", "./train"));
    assert!(none.len() == 1 && none[0].contains("the job asks for no GPU"), "{none:?}");
}

#[test]
fn a_number_that_is_not_in_the_options_is_said_to_be_so() {
    for (options, text, part) in [
        (
            "-N2 --exclusive",
            "srun x",
            "the number of GPUs of a node is not in the options, so one is written: set gpus.min",
        ),
        ("-N2 --exclusive", "srun torchrun --nproc_per_node=8 x", "the script names --nproc_per_node=8"),
        (
            "-N2",
            "GPUS_PER_NODE=8\nsrun torchrun --nproc-per-node 8 x",
            "names GPUS_PER_NODE=8, --nproc-per-node 8",
        ),
    ] {
        let lost = lost(&script(options, text));
        assert!(lost.iter().any(|note| note.starts_with("gpus: ") && note.contains(part)), "{lost:?}");
        assert!(!lost.iter().any(|note| note.contains("no GPU")), "{lost:?}");
    }
    // All CPUs of the node are no request of one.
    let one = script("--nodes=2 --exclusive --ntasks-per-node=1 --gpus-per-node=8", "srun x");
    assert_eq!((&container(&one)["resources"], lost(&one).len()), (&Value::Null, 0));
    assert!(one.notes.iter().any(|note| note.field == "--exclusive"));
}

#[test]
fn tasks_of_a_node_are_given_where_they_are_not_one_for_each_gpu() {
    let env = |options: &str| container(&script(options, "srun ./train"))["env"].clone();
    let tasks = |number: &str| json!([{"name": "SLURM_NTASKS_PER_NODE", "value": number}]);
    assert_eq!(env("-N2 --tasks-per-node=4 --gpus-per-node=4 --cpus-per-task=8"), Value::Null);
    assert_eq!(env("-N2 --gpus-per-n=8 --ntasks-per-node=1"), tasks("1"));
    assert_eq!(env("-N2 --gpus-per-node=8"), tasks("1"));
    assert_eq!(env("-N1 --gpus-per-node=1 --ntasks-per-node=4"), tasks("4"));
    assert_eq!(env("-n2 --gpus-per-task=2"), json!([{"name": "SLURM_GPUS_PER_TASK", "value": "2"}]));
    let one = script("-N2 --tasks-per-node=4 --gpus-per-node=4 --cpus-per-task=8", "srun ./train");
    assert_eq!(container(&one)["resources"]["requests"]["cpu"], "8");
    let one = script("--ntasks-per-gpu=1 --gpus-per-node=4 --cpus-per-task=32", "srun ./train");
    assert_eq!(container(&one)["resources"]["requests"]["cpu"], "128");
    let unknown = lost(&script("-n 32 --gpus-per-node=8 --exclusive", "srun ./train"));
    assert!(unknown.len() == 1 && unknown[0].starts_with("--nodes: is not given"), "{unknown:?}");
}

#[test]
fn names_of_options_are_read_as_sbatch_reads_them() {
    let one = script("-Qv -W -G 1 --mem=64gb --cluster=a --job=b --time 90", "python train.py");
    assert_eq!(container(&one)["resources"]["requests"], json!({"memory": "65536Mi"}));
    assert_eq!(one.job["metadata"]["name"], "b");
    assert!(one.notes.iter().any(|note| note.field == "--clusters"), "{:?}", one.notes);
    // Options after the first command are text.
    assert_eq!(gpus(&of("#!/bin/sh\n#SBATCH -G 2\ntrue\n#SBATCH --gpus=many\n")), &json!({"min": 2}));
}

#[test]
fn what_changes_nothing_for_the_program_is_not_lost() {
    let options = "-G1 --mail-type=ALL --mail-user=a -A p -p gpu -q high --nice=10 --deadline=2030-01-01 -o a -e b -C x -w n1 \
                   --requeue --signal=B:USR1@120 --comment=x --hint=nomultithread --begin=now --open-mode=append";
    let one = script(options, "python train.py");
    assert!(lost(&one).is_empty(), "{:?}", lost(&one));
    let changed = |field: &str, part: &str| {
        assert!(
            one.notes.iter().any(|note| note.field == field && note.text.contains(part)),
            "{field}: {:?}",
            one.notes
        );
    };
    changed("--mail-user", "is lost: nobody sends mail");
    changed("--deadline", "spec.deadline");
    changed("--nice", "weight");
    changed("--signal", "graceSeconds: 120");
    changed("--partition", "there are no partitions");
    assert_eq!(container(&one)["env"], json!([{"name": "SBATCH_SIGNAL", "value": "B:USR1"}]));
    for option in [
        "--licenses=a:1",
        "--dependency=afterok:1",
        "--container-mounts=/a:/a",
        "--export=ALL,HOME2",
        "--tmp=1G",
        "-i in",
    ] {
        assert_eq!(lost(&script(&format!("-G1 {option}"), "python train.py")).len(), 1, "{option}");
    }
}

#[test]
fn an_array_is_refused_with_a_loop_that_makes_a_job_of_each_run() {
    let error =
        read("#!/bin/bash\n#SBATCH --job-name=bert\n#SBATCH --gpus=1 --array=1-5:2,9%2\npython a.py\n")
            .unwrap_err();
    assert!(error.starts_with("line 3: --array: a TrainingJob is one run"), "{error}");
    assert!(error.contains("for id in $(seq 1 2 5) 9; do"), "{error}");
    let sed =
        "sed -e \"3s/--array=1-5:2,9%2/--export=ALL,SLURM_ARRAY_TASK_ID=$id/\" -e \"2s/bert/bert-$id/\" FILE";
    assert!(error.contains(sed), "{error}");
    let error = read("#SBATCH -G 1 -a 0-9\npython a.py\n").unwrap_err();
    assert!(
        error.contains("1s/-a 0-9/--export=ALL,SLURM_ARRAY_TASK_ID=$id --job-name=batch-$id/"),
        "{error}"
    );
}

#[test]
fn parts_of_gpus_and_types_are_lost() {
    for (option, part) in [
        ("--gres=gpu:1g.10gb:1", "1g.10gb is a part of a GPU"),
        ("--gres=gpu:a100_3g.20gb:1", "a100_3g.20gb is a part of a GPU"),
        ("--gres=shard:2", "shard:2 is a part of a GPU"),
        ("--gres=mps:50", "mps:50 is a part of a GPU"),
        ("--gres=gpu:a100:1", "type a100: name the value of the label"),
        ("--gres=gpu:1,nvme:1", "nvme is not planned"),
    ] {
        let one = script(option, "python train.py");
        assert_eq!((gpus(&one), lost(&one).len()), (&json!({"min": 1}), 1), "{option}");
        assert!(lost(&one)[0].contains(part), "{:?}", lost(&one));
    }
    for option in ["--gres=gpu:a100:2,gpu:v100:2", "--gpus-per-node=a100:2,v100:2"] {
        let one = script(option, "torchrun train.py");
        assert_eq!((gpus(&one), lost(&one).len()), (&json!({"min": 4}), 3), "{option}");
        assert!(lost(&one)[2].contains("a run never mixes types, so 4 GPUs"), "{:?}", lost(&one));
    }
}

#[test]
fn errors_name_the_line_and_what_to_do() {
    for (line, part) in [
        ("--nodes=many", "--nodes: \"many\" cannot be read"),
        ("--nodes=$NODES", "--nodes: \"$NODES\": Slurm reads no variables here: give the number"),
        ("-t soon", "--time: \"soon\" is no time"),
        ("--mem=lots", "--mem: "),
        ("-Z", "-Z is no option"),
        ("'x", "a quote has no end"),
        ("word", "\"word\" is no option"),
        ("--account=<your project>", "holds a placeholder: fill it in"),
        ("--nodes=<N>", "\"<N>\" is a placeholder: fill it in"),
        ("hetjob", "one TrainingJob for each"),
    ] {
        let error = read(&format!("#!/bin/sh\n#SBATCH {line}\n")).unwrap_err();
        assert!(error.starts_with("line 2: ") && error.contains(part), "{error}");
    }
    assert_eq!(script("-G1 --time=1-", "x").job["spec"]["maxRunTime"], duration_text(86_400));
    assert!(script("-G1 --time=-1", "x").job["spec"]["maxRunTime"].is_null());
}

#[test]
fn scripts_of_other_systems_and_without_options_are_named() {
    for (mark, system) in [
        ("#PBS -N bert", "PBS"),
        ("#BSUB -W 1", "LSF"),
        ("#$ -N a", "Grid Engine"),
        ("#COBALT -t 1", "Cobalt"),
    ] {
        for first in ["#!/bin/bash\n", "# begin\n"] {
            let error = read(&format!("{first}{mark}\ntorchrun train.py\n")).unwrap_err();
            assert!(
                error.starts_with("line 2: ") && error.contains(&format!("an option of {system}")),
                "{error}"
            );
        }
    }
    let without = lost(&of("#!/bin/bash\nsrun -n1 --gpus=4 ./train\n"));
    assert!(
        without.iter().any(|note| note.starts_with("#SBATCH: the script has no such lines")),
        "{without:?}"
    );
    assert!(!is_script("# Title\n\n```\ntext\n```\nmore\n#SBATCH -N 1\n"));
}

#[test]
fn images_of_steps_are_read_wherever_their_options_stand() {
    let options = "--nodes=2 --gpus-per-node=4";
    for text in [
        "cd /srv\nsrun --container-image=registry.example#team/train:1 --export=ALL,SEED=3 --chdir=/srv torchrun train.py",
        "srun --container-image registry.example#team/train:1 x\nsrun --container-image=registry.example#team/train:1 y",
        "ARGS=(--container-image registry.example#team/train:1)\nsrun \"${ARGS[@]}\" x",
        "IMAGE=docker://registry.example#team/train:1\nsrun --container-image=\"$IMAGE\" x",
        "srun --container-image=\"${IMAGE}\" x\nexport IMAGE=\"registry.example#team/train:1\"",
    ] {
        let one = script(options, text);
        assert_eq!(container(&one)["image"], "registry.example/team/train:1", "{text}");
        assert!(lost(&one).is_empty(), "{text} {:?}", lost(&one));
    }
    let mounts = script(options, "srun --container-image=a#b --container-mounts=/data:/data x");
    assert_eq!(lost(&mounts), ["srun --container-mounts: mount volumes in the template"]);
    let two = lost(&script(options, "srun --container-image=a#b x\nsrun --container-image=a#c y"));
    assert!(two.len() == 1 && two[0].contains("different images: a#b, a#c"), "{two:?}");
    let shifter = script("-G1 --image=docker:team/train:1", "srun shifter python train.py");
    assert_eq!(container(&shifter)["image"], "team/train:1");
    let step = script("-G1", "srun shifter --image=team/train:1 python train.py");
    assert_eq!(container(&step)["image"], "team/train:1");
    for file in ["/images/b.sqsh", "b.sif"] {
        let one = script("-G1", &format!("srun --container-image={file} x"));
        assert_eq!((container(&one)["image"].as_str(), lost(&one).len()), (Some("i"), 1));
    }
}

#[test]
fn programs_that_are_not_there_are_named() {
    for (text, field) in [
        ("srun singularity exec --nv a.sif ./train # in a comment", "singularity"),
        ("RUN=\"apptainer exec a.sif\"\nsrun $RUN ./train", "apptainer"),
        ("srun shifter python train.py", "shifter"),
        ("mpirun -np 16 ./train", "mpirun"),
        ("pdsh -w $SLURM_JOB_NODELIST hostname; srun x", "pdsh"),
    ] {
        let lost = lost(&script("-N2 --gpus-per-node=8", text));
        assert!(
            lost.len() == 1 && lost[0].starts_with(&format!("{field}: is not in a container")),
            "{text} {lost:?}"
        );
    }
    assert!(lost(&script("-N1 --gpus-per-node=8", "mpirun -np 8 ./train")).is_empty());
    let modules =
        script("-G1", "  module load cuda/12 # twelve\nml python\n# module load x\npython train.py");
    let fields: Vec<&str> =
        modules.notes.iter().map(|note| note.field.as_str()).filter(|field| field.starts_with('m')).collect();
    assert_eq!((fields, lost(&modules).len()), (vec!["module load cuda/12", "ml python"], 0));
}

#[test]
fn launchers_variables_and_arrays_need_no_note() {
    for text in [
        "# four processes\nsrun accelerate launch train.py",
        "LAUNCH=\"torchrun --nnodes=$SLURM_NNODES --node_rank=$SLURM_NODEID\"\nsrun bash -c \"$LAUNCH train.py\"",
        "export MASTER_ADDR=$(hostname)\nexport MASTER_PORT=29400\nexport WORLD_SIZE=$SLURM_NTASKS\nsrun python train.py",
        "export MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)\nsrun numactl -l python train.py",
    ] {
        assert!(lost(&script("-N2 --ntasks-per-node=4 --gpus-per-node=4", text)).is_empty(), "{text}");
    }
}

#[test]
fn numbers_that_a_plan_may_change_are_lost() {
    let lost = |text: &str| lost(&script("-N2 --ntasks-per-node=4 --gpus-per-node=4", text));
    let fixed = lost(
        "LAUNCH=\"torchrun --nnodes=2 --nproc_per_node 4 --node_rank=0\"\nsrun $LAUNCH train.py --nnodes=3",
    );
    assert!(
        fixed.len() == 1 && fixed[0].starts_with("--nnodes=2 --nproc_per_node 4: a plan may give other"),
        "{fixed:?}"
    );
    assert_eq!(lost("srun python train.py --trainer.num_nodes=2 --trainer.devices=4").len(), 1);
    assert!(lost("srun torchrun --nnodes=$SLURM_NNODES train.py --batch 4").is_empty());
}

#[test]
fn what_ran_once_and_runs_on_every_worker_is_lost() {
    let once = lost(&script("--nodes=4 --gpus-per-node=4", "./launch-all.sh"));
    assert!(once.len() == 1 && once[0].starts_with("script: ran once, on the first of 4 nodes"), "{once:?}");
    let steps = lost(&script("--nodes=3 --gpus-per-node=4", "srun --nodes=2 a & srun --nodes=1 b & wait"));
    assert!(steps.len() == 1 && steps[0].contains("submit one TrainingJob for each"), "{steps:?}");
    let named = "srun -N1 -w \"$a\" head &\nsrun -N1 -w \"$b\" worker &\nread -r a b\nwait";
    assert!(lost(&script("--nodes=2 --gpus-per-node=4", named)).is_empty());
}

#[test]
fn arguments_and_variables_from_outside_are_lost() {
    for text in [
        "CONFIG=${1:?name one}",
        "shift\npython train.py \"$@\"",
        "echo \"$#\"",
        "while getopts a:b o; do :; done",
    ] {
        let lost = lost(&script("-G1", text));
        assert!(lost.len() == 1 && lost[0].starts_with("$1: the script takes arguments"), "{text} {lost:?}");
    }
    assert!(lost(&script("-G1", "f() {\n  echo $1\n}\nawk '{print $1}' x # $2\necho \\$3")).is_empty());
    let outside = lost(&script(
        "-G1",
        "cd $SCRATCH/bert\ntorchrun train.py --data $DATA_ROOT --out ${WORK}/out $SLURM_ARRAY_TASK_ID",
    ));
    assert!(
        outside.len() == 1
            && outside[0].starts_with("$DATA_ROOT, $SCRATCH, $SLURM_ARRAY_TASK_ID, $WORK: has its value"),
        "{outside:?}"
    );
    let given = "A=1\nexport B=$A\nfor C in 1 2; do echo $C; done\nread -r D E\necho ${F:-x} $HOME $SLURM_JOBID $B $D $E '$G' ${F}\n\
                 mapfile -t H < x\necho \"${H[0]}\" $RANDOM ${#A} ${!A} $$ $? $!";
    assert!(lost(&script("-G1", given)).is_empty(), "{:?}", lost(&script("-G1", given)));
}
