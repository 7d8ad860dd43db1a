//! Workers of a job as processes: each has a folder of its own, the programs, and stand-ins for what an image has.
// Each test uses a part of it.
#![allow(dead_code)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use andreas_testbed::write_executables;
use andreas_workloads::slurm::{BATCH, PROGRAMS, Place, environment};
use tempfile::TempDir;

/// Programs of an image: each writes its arguments and what it knows of its place into a file.
const STAND_INS: [&str; 8] =
    ["accelerate", "conda", "deepspeed", "getent", "python", "python3", "ray", "torchrun"];
const STAND_IN: &str = r#"#!/bin/sh
name=${0##*/}
case $name:$1 in
conda:*) exit ;;
getent:*) host=${2#job-1-}; echo "10.0.0.${host%%.*} $2"; exit ;;
python*:-) read -r line; set -- "$line" ;;
esac
place="in the script on ${SLURMD_NODENAME%%.*}"
[ -z "$SLURM_STEP_ID" ] || place="task $SLURM_PROCID of $SLURM_NTASKS, $SLURM_LOCALID on node $SLURM_NODEID of $SLURM_NNODES, \
${SLURMD_NODENAME%%.*}, GPUs $CUDA_VISIBLE_DEVICES"
echo "$place: $name $*" >>"$RECORD"
case $* in *--seed*) sleep 1 ;; esac
"#;

/// Shells that this machine has, by the first line of a program.
pub fn shells() -> Vec<&'static str> {
    let all = [
        ("/bin/sh", "/bin/sh"),
        ("/usr/bin/dash", "/usr/bin/dash"),
        ("/bin/busybox", "/bin/busybox ash"),
        ("/bin/bash", "/bin/bash"),
    ];
    all.iter().filter(|(program, _)| Path::new(program).exists()).map(|(_, line)| *line).collect()
}

/// A job whose workers are processes of this machine.
pub struct Job {
    pub folder: TempDir,
    pub nodes: usize,
    pub gpus: u32,
    /// Environment of the template.
    pub given: Vec<(String, String)>,
}

/// How a worker ended.
#[derive(Debug)]
pub struct Ended {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
    /// What stand-ins wrote, in order of the text.
    pub record: Vec<String>,
}

impl Job {
    /// Workers with so many GPUs, and programs for this shell.
    pub fn new(shell: &str, nodes: usize, gpus: u32) -> Self {
        let folder = TempDir::new().expect("a folder");
        let programs = folder.path().join("programs");
        let image = folder.path().join("image");
        fs::create_dir(&programs).expect("a folder");
        fs::create_dir(&image).expect("a folder");
        let texts = PROGRAMS
            .iter()
            .map(|program| (program.name, program.text().replacen("#!/bin/sh", &format!("#!{shell}"), 1)));
        write_executables(&programs, texts).expect("programs");
        write_executables(&image, STAND_INS.map(|name| (name, STAND_IN))).expect("programs");
        Self { folder, nodes, gpus, given: Vec::new() }
    }

    /// A variable of the template's environment.
    pub fn given(mut self, name: &str, value: &str) -> Self {
        self.given.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The folder of a worker.
    pub fn worker(&self, index: usize) -> PathBuf {
        self.folder.path().join(format!("worker-{index}"))
    }

    /// Starts one worker with this command.
    pub fn start(&self, index: usize, command: &[String]) -> Child {
        let folder = self.worker(index);
        for name in ["", "tmp", "state", "home"] {
            fs::create_dir_all(folder.join(name)).expect("a folder");
        }
        let hosts = (0..self.nodes).map(|index| format!("job-1-{index}.gang.team.svc")).collect();
        let place = Place { job: "job".into(), uid: "u".into(), attempt: 1, index, hosts, gpus: self.gpus };
        let first = place.hosts[0].clone();
        let given = |name: &str| self.given.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str());
        let output = |name: &str| fs::File::create(folder.join(name)).expect("a file");
        Command::new(self.folder.path().join("programs").join(BATCH))
            .args(command)
            .env_clear()
            .env("PATH", format!("{}:/usr/bin:/bin", self.folder.path().join("image").display()))
            .env("RECORD", folder.join("record"))
            .env("HOME", folder.join("home"))
            .env("ANDREAS_SLURM_STATE", folder.join("state"))
            .env("MASTER_ADDR", first)
            .env("MASTER_PORT", "29500")
            .envs(self.given.iter().map(|(name, value)| (name, value)))
            .envs(environment(&place, 8 * self.gpus, given))
            .current_dir(&folder)
            .stdin(Stdio::null())
            .stdout(output("stdout"))
            .stderr(output("stderr"))
            .spawn()
            .expect("a worker starts")
    }

    /// How a worker ended.
    pub fn end(&self, index: usize, mut child: Child) -> Ended {
        let status = child.wait().expect("a worker ends");
        let read = |name: &str| fs::read_to_string(self.worker(index).join(name)).unwrap_or_default();
        let mut record: Vec<String> = read("record").lines().map(str::to_owned).collect();
        record.sort();
        Ended { code: status.code().unwrap_or(-1), stdout: read("stdout"), stderr: read("stderr"), record }
    }

    /// Runs a command on all workers at once.
    pub fn run_command(&self, command: &[String]) -> Vec<Ended> {
        let children: Vec<Child> = (0..self.nodes).map(|index| self.start(index, command)).collect();
        children.into_iter().enumerate().map(|(index, child)| self.end(index, child)).collect()
    }

    /// Runs a text for bash on all workers at once.
    pub fn run(&self, text: &str) -> Vec<Ended> {
        self.run_command(&["/bin/bash", "-c", text].map(str::to_owned))
    }
}
