//! Steps of srun, under each shell of this machine.

mod common;

use std::time::{Duration, Instant};

use common::{Ended, Job, shells};

/// Runs a text on two workers with four GPUs and four tasks each, under every shell.
fn everywhere(text: &str, check: impl Fn(&str, &[Ended])) {
    for shell in shells() {
        check(shell, &Job::new(shell, 2, 4).run(text));
    }
}

fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines
}

#[test]
fn each_task_knows_its_rank_its_node_and_the_others() {
    let text = "srun sh -c 'echo $SLURM_PROCID $SLURM_LOCALID $SLURM_NODEID $SLURM_NTASKS $SLURM_GTIDS $SLURM_STEP_NUM_NODES \
                $SLURM_STEP_TASKS_PER_NODE $SLURM_JOB_NUM_NODES ${SLURMD_NODENAME%%.*}'";
    everywhere(text, |shell, ended| {
        let line = |rank: u32, node: u32| {
            let (ids, local) = (["0,1,2,3", "4,5,6,7"][node as usize], rank % 4);
            format!("{rank} {local} {node} 8 {ids} 2 4(x2) 2 job-1-{node}")
        };
        for (node, worker) in ended.iter().enumerate() {
            let node = u32::try_from(node).expect("a node");
            let expected: Vec<String> = (0..4).map(|local| line(node * 4 + local, node)).collect();
            assert_eq!(sorted(&worker.stdout), expected, "{shell} {}", worker.stderr);
            assert_eq!(worker.code, 0, "{shell}");
        }
    });
}

#[test]
fn options_say_how_many_tasks_there_are_and_where() {
    for (options, expected) in [
        ("-N1", [vec![0, 1, 2, 3], vec![]]),
        ("-n1", [vec![0], vec![]]),
        ("-n 3", [vec![0, 1], vec![2]]),
        ("--nodes=2 --ntasks=2", [vec![0], vec![1]]),
        ("--ntasks-per-node 2", [vec![0, 1], vec![2, 3]]),
        ("-n2 --ntasks-per-node=2", [vec![0, 1], vec![]]),
        ("-n4 -m cyclic", [vec![0, 2], vec![1, 3]]),
        ("-N 1 -n1 -w job-1-1", [vec![], vec![0]]),
        ("-w job-1-[0-1].gang.team.svc --ntasks-per-node=1", [vec![0], vec![1]]),
        ("-x job-1-0 -n2", [vec![], vec![0, 1]]),
        ("-r1 -N1 -n1", [vec![], vec![0]]),
        ("--gpus-per-task=2 --gpus-per-node=4", [vec![0, 1], vec![2, 3]]),
        ("--ntasks-per-gpu=1 --gpus=2", [vec![0], vec![1]]),
        ("-N4 --ntasks-per-node=1", [vec![0], vec![1]]),
        ("-lun2 --mpi pmix --cpu-bind=cores --unbuffered", [vec![0], vec![1]]),
        ("--ntasks-per-no=1 --exclusive", [vec![0], vec![1]]),
    ] {
        everywhere(&format!("srun {options} sh -c 'echo $SLURM_PROCID'"), |shell, ended| {
            for (worker, ranks) in ended.iter().zip(&expected) {
                let mut lines: Vec<i32> = worker
                    .stdout
                    .lines()
                    .map(|line| line.rsplit(' ').next().unwrap_or_default().parse().unwrap_or(-1))
                    .collect();
                lines.sort_unstable();
                assert_eq!(&lines, ranks, "{shell} {options} {}", worker.stderr);
                assert_eq!(worker.code, 0, "{shell} {options}");
            }
        });
    }
}

#[test]
fn tasks_see_the_gpus_that_they_ask_for() {
    for (options, expected) in [
        ("-N1", "0,1,2,3 0,1,2,3 0,1,2,3 0,1,2,3"),
        ("-N1 -n2 --gpus-per-task=2", "0,1 2,3"),
        ("-N1 -n4 --gpus-per-task=1", "0 1 2 3"),
        ("-N1 -n2 --gpus-per-node=a100:2", "0,1 0,1"),
        ("-N1 -n1 --gres=gpu:1", "0"),
        ("-N1 -n2 --gpu-bind=map_gpu:3,1", "1 3"),
        ("-N1 -n2 --tres-per-task=cpu:4,gres/gpu:2", "0,1 2,3"),
        ("-N1 -n4 --ntasks-per-gpu=2 --gpus=2", "0 0 1 1"),
    ] {
        everywhere(&format!("srun {options} sh -c 'echo $CUDA_VISIBLE_DEVICES'"), |shell, ended| {
            assert_eq!(sorted(&ended[0].stdout).join(" "), expected, "{shell} {options} {}", ended[0].stderr);
        });
    }
}

#[test]
fn steps_that_run_at_once_get_gpus_of_their_own_and_wait_for_them() {
    let text = "for i in 1 2 3 4 5 6; do srun -N1 -n1 --gpus=1 sh -c 'echo $CUDA_VISIBLE_DEVICES; sleep 0.5' & done; wait";
    for shell in shells() {
        let ended = Job::new(shell, 1, 4).run(text);
        let lines = sorted(&ended[0].stdout);
        assert_eq!(lines.len(), 6, "{shell} {}", ended[0].stderr);
        for device in ["0", "1", "2", "3"] {
            assert!(lines.contains(&device), "{shell} {lines:?}");
        }
    }
}

#[test]
fn words_reach_the_program_as_they_are() {
    let text = "srun -n1 printf '<%s>' 'a  b' \"it's\" '*' '' $'two\\nlines' '$HOME' '\"' -n 3 -- --label";
    everywhere(text, |shell, ended| {
        assert_eq!(
            ended[0].stdout, "<a  b><it's><*><><two\nlines><$HOME><\"><-n><3><--><--label>",
            "{shell}"
        );
    });
}

#[test]
fn each_task_reads_what_srun_reads() {
    // Not `cat`: from a file into a file it copies beside the others' writes, and one of two may be lost.
    let text = "srun -N1 -n2 sh -c 'read -r line; echo \"$line\"' <<E\n$((1 + 1)) \"two\"\nE\nprintf 'a\\nb' | srun -n1 cat\nsrun -N1 -n1 cat </dev/null\n\
                printf '1\\n2\\n' | while read -r line; do srun -N1 -n1 echo step $line </dev/null; done\n\
                echo from a file >in; srun -N1 -n1 --input=in cat";
    everywhere(text, |shell, ended| {
        let expected = "2 \"two\"\n2 \"two\"\na\nbstep 1\nstep 2\nfrom a file\n";
        assert_eq!(ended[0].stdout, expected, "{shell} {}", ended[0].stderr);
        assert_eq!(ended[1].stdout, "", "{shell}");
    });
}

#[test]
fn srun_ends_as_the_worst_task_does() {
    for (program, code) in [
        ("sh -c 'exit $SLURM_LOCALID'", 3),
        ("sh -c 'exit $((3 - SLURM_LOCALID))'", 3),
        ("true", 0),
        ("sh -c 'kill -TERM $$'", 143),
        ("no-such-program", 127),
        ("-K sh -c 'if [ $SLURM_LOCALID = 2 ]; then exit 7; else sleep 60; fi'", 7),
    ] {
        let started = Instant::now();
        everywhere(&format!("srun {program}"), |shell, ended| {
            assert_eq!(ended[0].code, code, "{shell} {program} {}", ended[0].stderr);
        });
        assert!(started.elapsed() < Duration::from_secs(50), "{program}");
    }
}

#[test]
fn a_failing_step_ends_a_script_that_says_so() {
    everywhere("set -euo pipefail\nsrun false | cat\necho never", |shell, ended| {
        assert_eq!((ended[0].code, ended[0].stdout.as_str()), (1, ""), "{shell}");
    });
}

#[test]
fn lines_have_the_rank_of_their_task() {
    everywhere(
        r#"srun -N1 -n2 --label sh -c 'printf "%s\n" "a  b\\"; printf last; echo wrong >&2'"#,
        |shell, ended| {
            assert_eq!(sorted(&ended[0].stdout), ["0: a  b\\", "0: last", "1: a  b\\", "1: last"], "{shell}");
            assert_eq!(sorted(&ended[0].stderr), ["0: wrong", "1: wrong"], "{shell}");
        },
    );
    let job = Job::new("/bin/sh", 1, 12);
    let line = job.run("srun -l sh -c 'echo x; exit $((SLURM_LOCALID / 11))'").remove(0);
    assert!(line.stdout.contains("\n11: x\n") || line.stdout.starts_with("11: x\n"), "{}", line.stdout);
    assert!(line.stdout.contains(" 0: x\n") && line.code == 1, "{}", line.stdout);
}

#[test]
fn output_goes_to_files_by_pattern() {
    let text = "srun -N1 -n2 --output=out.%3t.%x.%j.%N sh -c 'echo $SLURM_PROCID; echo e >&2'\nsrun -N1 -n2 -o both -e errors sh -c 'echo a; echo b >&2'\n\
                srun -N1 -n1 -o both --open-mode=append echo more\nsrun -N1 -n2 --output=none echo lost\ncat out.000.* out.001.* both errors";
    everywhere(text, |shell, ended| {
        assert_eq!(ended[0].stdout, "0\ne\n1\ne\na\na\nmore\nb\nb\n", "{shell} {}", ended[0].stderr);
    });
}

#[test]
fn variables_are_those_that_the_option_export_names() {
    let text = "export A=1 B=$'2\\nx=3' C=4\nshow='echo \"${A-no} ${B-no} ${C-no} ${SLURM_PROCID-no}\"'\n\
                srun -N1 -n1 sh -c \"$show\"\nsrun -N1 -n1 --export=ALL,A=5,D=6 sh -c \"$show\"' $D'\n\
                srun -N1 -n1 --export=NONE sh -c \"$show\"\nsrun -N1 -n1 --export=C,A=7 sh -c \"$show\"\nsrun -N1 -n1 --export NIL true";
    everywhere(text, |shell, ended| {
        let expected = "1 2\nx=3 4 0\n5 2\nx=3 4 0 6\nno no no 0\n7 no 4 0\n";
        assert_eq!(ended[0].stdout, expected, "{shell} {}", ended[0].stderr);
    });
}

#[test]
fn a_folder_is_changed_to_and_an_image_is_said_to_be_fixed() {
    let text = "srun -N1 -n1 -D / pwd\nsrun -N1 -n1 --chdir=/nowhere pwd\nsrun -N1 -n1 --container-image=a#b --container-mounts=/a:/a --container-workdir / pwd";
    everywhere(text, |shell, ended| {
        assert_eq!(ended[0].stdout, "/\n/tmp\n/\n", "{shell}");
        assert!(
            ended[0].stderr.contains("the image is that of the container"),
            "{shell} {}",
            ended[0].stderr
        );
    });
}

#[test]
fn what_srun_cannot_do_is_an_error() {
    for (words, part) in [
        ("srun", "No command given"),
        ("srun --unknown=3 true", "unrecognized option '--unknown=3'"),
        ("srun -Y true", "invalid option -- 'Y'"),
        ("srun -n", "requires an argument"),
        ("srun -n many true", "invalid value \"many\" of --ntasks"),
        ("srun --multi-prog conf", "--multi-prog is not read"),
        ("srun -w elsewhere true", "elsewhere is no node of this job"),
        ("sbatch next.sh", "a TrainingJob submits no other"),
        ("scontrol update job=1", "is not there in a TrainingJob"),
        ("scontrol requeue 1", "starts again by itself"),
    ] {
        everywhere(words, |shell, ended| {
            assert_eq!(ended[0].code, 1, "{shell} {words}");
            assert!(ended[0].stderr.contains(part), "{shell} {words}: {}", ended[0].stderr);
        });
    }
}

#[test]
fn hosts_are_listed_as_scontrol_lists_them() {
    let text = "scontrol show hostnames\nscontrol show hostname 'a[08-10,2],b,c[1-2]x[0-1].d'\nscontrol show hostlist\n\
                scontrol show job $SLURM_JOB_ID | grep -o 'NumNodes=2 NumTasks=8'\nhostname; srun hostname -s; hostname -i";
    everywhere(text, |shell, ended| {
        let lists = "job-1-0.gang.team.svc\njob-1-1.gang.team.svc\na08\na09\na10\na2\nb\nc1x0.d\nc1x1.d\nc2x0.d\nc2x1.d\n\
                     job-1-0.gang.team.svc,job-1-1.gang.team.svc\nNumNodes=2 NumTasks=8\njob-1-0.gang.team.svc\n\
                     job-1-0\njob-1-0\njob-1-0\njob-1-0\njob-1-1\njob-1-1\njob-1-1\njob-1-1\n10.0.0.0\n";
        // Where Slurm would run the script once, on the first node, each worker sees the same.
        assert!(ended.iter().all(|worker| worker.stdout == lists), "{shell} {ended:?}");
    });
}

#[test]
fn programs_come_first_in_the_path_of_a_login_shell_too() {
    for shell in shells() {
        let job = Job::new(shell, 1, 1);
        for words in [["/bin/bash", "-l", "-c"], ["/bin/sh", "-e", "-c"], ["/bin/bash", "-e", "-c"]] {
            let command: Vec<String> =
                words.into_iter().chain(["command -v srun"]).map(str::to_owned).collect();
            let ended = job.run_command(&command).remove(0);
            assert!(ended.stdout.ends_with("programs/srun\n"), "{shell} {words:?} {}", ended.stdout);
        }
    }
}

/// Starts a script on one worker, sends SIGTERM once so many programs have made a file `ready.N`, and returns how it ended.
fn stopped(job: &Job, programs: usize, text: &str) -> Ended {
    let child = job.start(0, &["/bin/bash", "-c", text].map(str::to_owned));
    let ready = || (0..programs).all(|number| job.worker(0).join(format!("ready.{number}")).exists());
    let limit = Instant::now() + Duration::from_secs(30);
    while !ready() {
        assert!(Instant::now() < limit, "the program has not started");
        std::thread::sleep(Duration::from_millis(20));
    }
    std::process::Command::new("kill").arg(child.id().to_string()).status().expect("kill");
    job.end(0, child)
}

#[test]
fn a_stop_reaches_the_tasks_and_the_script_goes_on_after_them() {
    let save = "trap \"echo saved \\$SLURM_PROCID; exit 5\" TERM; : >ready.$SLURM_LOCALID; while :; do sleep 0.1; done";
    for shell in shells() {
        for options in ["", "--label"] {
            let text = format!("srun -n2 {options} bash -c '{save}'\necho \"ended with $?\"");
            let ended = stopped(&Job::new(shell, 1, 2), 2, &text);
            let lines = sorted(&ended.stdout);
            assert_eq!(lines.len(), 3, "{shell} {options} {ended:?}");
            assert!(
                lines.iter().filter(|line| line.contains("saved ")).count() == 2
                    && lines.contains(&"ended with 5"),
                "{shell} {lines:?}"
            );
        }
    }
}

#[test]
fn a_stop_reaches_a_program_that_srun_did_not_start() {
    let text = "bash -c 'trap \"echo saved; exit 4\" TERM; : >ready.$SLURM_LOCALID; while :; do sleep 0.1; done'\necho \"ended with $?\"";
    for shell in shells() {
        let ended = stopped(&Job::new(shell, 1, 1), 1, text);
        assert_eq!(ended.stdout, "saved\nended with 4\n", "{shell} {ended:?}");
    }
}

#[test]
fn the_signal_of_the_script_is_the_one_that_it_asked_for() {
    let text = "trap 'echo handled; exit 6' USR1\nsrun sh -c ': >ready.$SLURM_LOCALID; sleep 5' &\nwait";
    for shell in shells() {
        let job = Job::new(shell, 1, 1).given("SBATCH_SIGNAL", "B:USR1@60");
        let ended = stopped(&job, 1, text);
        assert_eq!((ended.stdout.as_str(), ended.code), ("handled\n", 6), "{shell} {ended:?}");
        let job = Job::new(shell, 1, 1).given("SBATCH_SIGNAL", "SIGUSR2");
        let ended = stopped(
            &job,
            1,
            "srun bash -c 'trap \"echo two; exit 0\" USR2; : >ready.$SLURM_LOCALID; while :; do sleep 0.1; done'",
        );
        assert_eq!((ended.stdout.as_str(), ended.code), ("two\n", 0), "{shell} {ended:?}");
    }
}

#[test]
fn variables_that_are_named_are_there() {
    let ended = Job::new("/bin/sh", 1, 1)
        .given("SLURM_GPUS_PER_TASK", "1")
        .run("env; srun -n1 --gpus=1 env")
        .remove(0);
    for name in andreas_workloads::slurm::VARIABLES.split(' ') {
        assert!(ended.stdout.contains(&format!("\n{name}=")), "{name}");
    }
}
