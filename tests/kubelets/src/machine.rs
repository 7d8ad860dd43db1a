//! The GPUs of this machine, for a node that has them in place of simulated ones.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use andreas_test_nodes::GpuHardware;
use serde_json::{Value, json};

/// What the kernel module says of each GPU.
const GPUS: &str = "/proc/driver/nvidia/gpus";
/// Device files that every container with a GPU has.
const OF_ALL: [&str; 3] = ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"];
/// Libraries of the driver that programs load by these names, and the last one by the second.
const LIBRARIES: [&str; 3] = ["libnvidia-ml.so.1", "libcuda.so.1", "libnvidia-ptxjitcompiler.so.1"];

/// The GPUs of this machine.
#[derive(Clone, Debug)]
pub struct MachineGpus {
    /// Number of each one's device file, by UUID.
    minors: BTreeMap<String, u32>,
    /// Where the driver's libraries are, by name.
    libraries: BTreeMap<&'static str, PathBuf>,
}

impl MachineGpus {
    /// What this machine has; none where there is no driver of NVIDIA.
    pub fn find() -> Option<Self> {
        let folders = std::fs::read_dir(GPUS).ok()?.flatten();
        let texts =
            folders.filter_map(|folder| std::fs::read_to_string(folder.path().join("information")).ok());
        let minors: BTreeMap<String, u32> = texts.filter_map(|text| gpu(&text)).collect();
        let linker = std::process::Command::new("ldconfig").arg("-p").output().ok()?;
        let libraries = libraries(&String::from_utf8_lossy(&linker.stdout));
        (!minors.is_empty() && !libraries.is_empty()).then_some(Self { minors, libraries })
    }

    /// Where containers have the driver's libraries, and this machine has no file. A container that sees this machine's `/usr` leaves
    /// empty ones there, which its runtime makes to mount on.
    pub fn mount_points(&self) -> Vec<PathBuf> {
        self.libraries.keys().map(|name| in_containers(name)).filter(|path| !path.exists()).collect()
    }

    /// Their UUIDs.
    pub fn uuids(&self) -> impl Iterator<Item = &str> {
        self.minors.keys().map(String::as_str)
    }

    /// The GPUs as the Container Device Interface describes them: by UUID, and all.
    pub(crate) fn devices(&self) -> Value {
        let file = |minor: &u32| json!({"path": format!("/dev/nvidia{minor}")});
        let named = |name: &str, minors: &[&u32]| {
            let files: Vec<Value> = minors.iter().map(|minor| file(minor)).collect();
            json!({"name": name, "containerEdits": {"deviceNodes": files}})
        };
        let minors: Vec<&u32> = self.minors.values().collect();
        let each = self.minors.iter().map(|(uuid, minor)| named(uuid, &[minor]));
        let devices: Vec<Value> = each.chain([named("all", &minors)]).collect();
        let of_all = OF_ALL.iter().filter(|path| Path::new(path).exists());
        let files: Vec<Value> = of_all.map(|path| json!({"path": path})).collect();
        let mounts = self.libraries.iter().map(|(name, path)| {
            json!({"hostPath": path, "containerPath": in_containers(name), "options": ["ro", "bind"]})
        });
        let mounts: Vec<Value> = mounts.collect();
        json!({
            "cdiVersion": "0.6.0",
            "kind": "nvidia.com/gpu",
            "devices": devices,
            "containerEdits": {"deviceNodes": files, "mounts": mounts},
        })
    }

    /// What an observer is told of them: their draw and settings are read by no program of the test.
    pub(crate) fn hardware(&self) -> Vec<GpuHardware> {
        let gpu = |uuid: &String| GpuHardware {
            uuid: uuid.clone(),
            watts: 0.0,
            joules: 0.0,
            limit_watts: 0.0,
            locked_mhz: None,
            at_defaults: true,
        };
        self.minors.keys().map(gpu).collect()
    }
}

/// Where containers have a library of the driver.
pub fn in_containers(library: &str) -> PathBuf {
    Path::new("/usr/lib").join(format!("{}-linux-gnu", std::env::consts::ARCH)).join(library)
}

/// UUID and number of the device file, of the module's file about a GPU.
fn gpu(information: &str) -> Option<(String, u32)> {
    let field = |name: &str| {
        let lines = information.lines().filter_map(|line| line.split_once(':'));
        lines.into_iter().find_map(|(key, value)| (key.trim() == name).then(|| value.trim().to_owned()))
    };
    Some((field("GPU UUID")?, field("Device Minor")?.parse().ok()?))
}

/// Where the dynamic linker finds the driver's libraries, of what `ldconfig -p` says.
fn libraries(linker: &str) -> BTreeMap<&'static str, PathBuf> {
    let path = |name: &str| {
        let mut lines = linker.lines().filter(|line| line.split_whitespace().next() == Some(name));
        let line = lines.find(|line| line.contains("x86-64") || line.contains("AArch64"))?;
        std::fs::canonicalize(line.split_once("=> ")?.1.trim()).ok()
    };
    LIBRARIES.into_iter().filter_map(|name| Some((name, path(name)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_is_read_from_the_modules_file() {
        let text = "Model: \t\t NVIDIA H200\nIRQ:   \t\t 60\nGPU UUID: \t GPU-9647ee8d-4c61-ec10-8ef8-80e26644d977\nVideo BIOS: \t\t 96.00.a5.00.1a\nDevice Minor: \t 0\n";
        assert_eq!(gpu(text), Some(("GPU-9647ee8d-4c61-ec10-8ef8-80e26644d977".into(), 0)));
        assert_eq!(gpu("Model: NVIDIA H200\n"), None);
    }

    #[test]
    fn a_library_is_one_of_this_architecture_that_is_there() {
        let there = std::env::current_exe().unwrap().canonicalize().unwrap();
        let linker = format!(
            "\tlibcuda.so.1 (libc6) => /usr/lib/i386-linux-gnu/libcuda.so.1\n\tlibcuda.so.1 (libc6,x86-64) => {}\n\
             \tlibnvidia-ml.so.1 (libc6,x86-64) => /nowhere/libnvidia-ml.so.1\n",
            there.display()
        );
        assert_eq!(libraries(&linker), BTreeMap::from([("libcuda.so.1", there)]));
    }

    #[test]
    fn a_container_gets_the_files_of_its_gpu_and_the_drivers_libraries() {
        let machine = MachineGpus {
            minors: BTreeMap::from([("GPU-a".to_owned(), 1), ("GPU-b".to_owned(), 0)]),
            libraries: BTreeMap::from([("libcuda.so.1", "/opt/driver/libcuda.so.580".into())]),
        };
        let spec = machine.devices();
        let names: Vec<&str> =
            spec["devices"].as_array().unwrap().iter().map(|d| d["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["GPU-a", "GPU-b", "all"]);
        assert_eq!(spec["devices"][0]["containerEdits"]["deviceNodes"], json!([{"path": "/dev/nvidia1"}]));
        assert_eq!(spec["containerEdits"]["mounts"][0]["hostPath"], "/opt/driver/libcuda.so.580");
    }
}
