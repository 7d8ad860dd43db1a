//! Choices of the plan that failed: how programs, runtimes and kubelets say so, and what is barred for the profile.

use andreas_api::slim::SlimPod;
use andreas_api::training_job::Allocation;
use andreas_api::training_profile::Barred;
use andreas_cluster::index::name_of;
use andreas_cluster::instants;

use super::judge::Case;
use super::member::Member;

/// The plan's choice that failed, as a program or a container runtime says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FailedChoice {
    /// So many GPUs of the type have too little memory.
    GpuMemory,
    /// The image has no code for the GPU type.
    GpuType,
    /// The image has no code for the processor.
    Architecture,
    /// The kubelet cannot place a worker of that size.
    WorkerSize,
}

/// Messages of PyTorch, CUDA, JAX, TensorFlow and NCCL for exhausted GPU memory; of CUDA, PyTorch, Triton and FlashAttention for a GPU
/// type that the program has no code for; of Linux and containerd for another processor.
const CHOICES: [(FailedChoice, &[&str]); 3] = [
    (
        FailedChoice::GpuMemory,
        &[
            "CUDA out of memory",
            "CUDA error: out of memory",
            "CUDA_ERROR_OUT_OF_MEMORY",
            "cudaErrorMemoryAllocation",
            "torch.OutOfMemoryError",
            "torch.cuda.OutOfMemoryError",
            "RESOURCE_EXHAUSTED: Out of memory",
            "OOM when allocating tensor",
            "CUBLAS_STATUS_ALLOC_FAILED",
            "Cuda failure 'out of memory'",
            "Cuda failure 2 'out of memory'",
        ],
    ),
    (
        FailedChoice::GpuType,
        &[
            "no kernel image is available for execution on the device",
            "CUDA_ERROR_NO_BINARY_FOR_GPU",
            "cudaErrorNoKernelImageForDevice",
            "is not defined for option 'gpu-name'",
            "FlashAttention only supports",
            "is only supported on GPUs with compute capability",
        ],
    ),
    (
        FailedChoice::Architecture,
        &[
            "exec format error",
            "Exec format error",
            "no match for platform in manifest",
            "no matching manifest for",
        ],
    ),
];

/// The choice that a message blames, and the line that does.
pub(super) fn failed_choice(message: &str) -> Option<(FailedChoice, &str)> {
    CHOICES.iter().find_map(|(choice, words)| {
        let says = |line: &&str| words.iter().any(|words| line.contains(words));
        message.lines().rev().map(str::trim).find(says).map(|line| (*choice, line))
    })
}

impl<'a> Case<'a> {
    /// What is barred where a choice failed for a worker on that node. `None`: the node does not say.
    pub(super) fn barred(&self, choice: FailedChoice, node: &str) -> Option<Barred> {
        let Allocation { gpu_type, gpus, gpus_per_worker, .. } = self.allocation;
        let architecture =
            || self.o.nodes.get(node).map(|fact| fact.architecture.clone()).filter(|a| !a.is_empty());
        let mut barred = Barred {
            gpu_type: Some(gpu_type.clone()),
            most_gpus: (choice == FailedChoice::GpuMemory).then_some(*gpus),
            gpus_per_worker: (choice == FailedChoice::WorkerSize).then_some(*gpus_per_worker),
            architecture: None,
            at: instants::time(self.o.now),
        };
        if choice == FailedChoice::Architecture {
            (barred.gpu_type, barred.architecture) = (None, Some(architecture()?));
        }
        Some(barred)
    }

    /// What was learned, and how it is forgotten.
    pub(super) fn barred_text(&self, barred: &Barred) -> String {
        let profile = &self.o.profile.name;
        format!("from now on plans leave out {barred}, until TrainingProfile {profile} is deleted")
    }

    /// The size of a worker that the kubelet's topology manager could not place, if a smaller one may fit there.
    pub(super) fn refused_size(&self, pod: &SlimPod, node: &str) -> Option<Barred> {
        let refused = ["TopologyAffinityError", "SMTAlignmentError"].contains(&pod.status.reason.as_str());
        let smaller = || self.o.job.spec.gpus.worker_sizes(self.allocation.gpus_per_worker - 1);
        (refused && !smaller().is_empty()).then(|| self.barred(FailedChoice::WorkerSize, node))?
    }

    /// The node of a worker that ran out of GPU memory, and its words, where processes of no pod have memory on its GPUs.
    pub(super) fn memory_of_parked<'b>(
        &self,
        mut ends: impl Iterator<Item = (&'b Member<'a>, &'b str)>,
    ) -> Option<(&'a str, &'b str)>
    where
        'a: 'b,
    {
        ends.find_map(|(member, message)| {
            let (choice, words) = failed_choice(message)?;
            let agent = self.o.nodes.get(member.node)?.agent.as_ref()?;
            let pod = member.pod().map(|pod| name_of(&pod.metadata)).unwrap_or_default();
            // Of the GPUs that its agent sees with the pod, or none where that has ended.
            let beside = |holder: &str| agent.beside_parked.contains(holder);
            let parked = beside(&pod) || !agent.holders.contains(&pod) && beside("");
            (choice == FailedChoice::GpuMemory && parked).then_some((member.node, words))
        })
    }
}
