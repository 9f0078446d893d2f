"""Let vLLM serve what `forge prune --mode remap` wrote: a mixture whose router has E rows, but of whose experts K are left.

    pip install ./contrib/vllm          # vLLM finds the plug-in by its entry point, in each of its processes
    vllm serve OUT

OUT/config.json has `num_router_experts` E, the number of experts K where the family has it (n_routed_experts, ...), and
`expert_map`, a file whose tensor `expert_map` I32 [layers, E] gives each expert its number in OUT, or -1. The router
chooses among E as before; then remap() turns its choices into numbers 0..K-1, and vLLM's kernels see K experts.

Written for vLLM 0.33. Nothing changes for a model without `num_router_experts`. Refused: load balancing of experts
(EPLB), and shared experts that are fused with the others (ROCm's aiter).
"""
import json
import os

COUNTS = ("n_routed_experts", "num_experts", "num_local_experts")  # the families' words for E


def remap(expert_map, weights, ids, renormalize):
    """The router's choices ids [n, top_k] of 0..E-1 and weights [n, top_k], for K experts.

    A pruned expert becomes expert 0 with weight 0. With renormalize, where the family divides a token's weights by their
    sum, those that are left are scaled so that the sum stays; a token without any gets zeros. Ids below 0 (vLLM's padding)
    stay. Tensors alone decide, nothing waits for the device: fit for CUDA graphs."""
    to = expert_map[ids.clamp(min=0).long()]
    left = weights.masked_fill((to < 0) & (ids >= 0), 0)
    if renormalize:
        after = left.sum(-1, keepdim=True)
        left = left * (weights.sum(-1, keepdim=True) / after.masked_fill(after == 0, 1))
    return left, to.clamp(min=0).to(ids.dtype).where(ids >= 0, ids)


def read_map(directory, name):
    """The tensor expert_map of a checkpoint's directory, checked: int32 [layers, E]."""
    import torch
    from safetensors.torch import load_file
    path = os.path.join(directory, name)
    if os.path.basename(name) != name or not os.path.isfile(path):
        raise ValueError(f"{path}: is not there; a pruned model is served from its directory")
    m = load_file(path).get("expert_map")
    if m is None or m.dtype != torch.int32 or m.ndim != 2:
        raise ValueError(f"{path}: has no tensor expert_map, I32 [layers, experts]")
    for i, row in enumerate(m.tolist()):
        if (kept := sorted(x for x in row if x != -1)) != list(range(len(kept))):
            raise ValueError(f"{path}: layer {i}: kept experts are not numbered 0 to {len(kept) - 1}")
    return m


def whole_router(config):
    """config with E in place of K: vLLM makes routers of so many rows, and asks for the number of experts in kept()."""
    if hasattr(config, "num_router_experts"):
        config.forge_kept = next(n for c in COUNTS if (n := getattr(config, c, None)))
        for c in COUNTS:
            if getattr(config, c, None) == config.forge_kept:
                setattr(config, c, config.num_router_experts)
    return config


def current():
    """The configuration of the pruned model that is being loaded; None: another model."""
    from vllm.config import get_current_vllm_config
    m = get_current_vllm_config().model_config
    return m if m is not None and hasattr(m.hf_text_config, "forge_kept") else None


def router_class():
    from vllm.model_executor.layers.fused_moe.config import RoutingMethodType
    from vllm.model_executor.layers.fused_moe.router.fused_moe_router import FusedMoERouter

    class RemapRouter(FusedMoERouter):
        """vLLM's router for E experts, and remap() behind it."""
        routing_method_type = RoutingMethodType.Custom
        supports_monolithic_kernels = False  # those would choose among K

        def __init__(self, inner, renormalize):
            super().__init__(eplb_state=None)
            self.inner, self.renormalize, self.expert_map = inner, renormalize, None

        def set_capture_fn(self, capture_fn):
            self.inner.set_capture_fn(capture_fn)

        def _select_experts(self, hidden_states, router_logits, topk_indices_dtype=None, *, input_ids=None):
            if router_logits.shape[-1] != self.expert_map.shape[0]:
                raise ValueError(f"a router of {router_logits.shape[-1]} rows, and a map of {self.expert_map.shape[0]} experts")
            weights, ids = self.inner._select_experts(hidden_states, router_logits, topk_indices_dtype, input_ids=input_ids)
            return remap(self.expert_map, weights, ids, self.renormalize)

    return RemapRouter


def register():
    """The entry point: vLLM calls it in each process before it loads a model; again is harmless."""
    from vllm.config import get_current_vllm_config
    from vllm.config import model as model_config
    from vllm.model_executor.layers.fused_moe import layer
    from vllm.model_executor.model_loader import default_loader
    from vllm.model_executor.models.utils import extract_layer_index
    if getattr(layer, "forge_registered", False):
        return
    layer.forge_registered = True
    Router = router_class()
    read, count, create, files = (model_config.get_config, layer.determine_expert_counts, layer.create_fused_moe_router,
                                  default_loader.filter_duplicate_safetensors_files)

    def get_config(*a, **k):
        return whole_router(read(*a, **k))

    def determine_expert_counts(num_experts, num_redundant_experts, n_shared_experts, fuse_shared_experts):
        if m := current():
            if num_redundant_experts or (fuse_shared_experts and n_shared_experts):
                raise ValueError("a pruned model: vLLM's load balancing and fused shared experts are not supported")
            num_experts = m.hf_text_config.forge_kept
        return count(num_experts, num_redundant_experts, n_shared_experts, fuse_shared_experts)

    def create_fused_moe_router(**k):
        router = create(**k)
        if current() and k.get("eplb_state") is not None:
            raise ValueError("a pruned model: vLLM's load balancing of experts is not supported")
        return Router(router, k["renormalize"]) if current() else router

    class Runner(layer.MoERunner):  # which is told the layer's name
        def __init__(self, *a, **k):
            if isinstance(k["router"], Router):
                m = current()
                rows = read_map(m.model, m.hf_text_config.expert_map)
                row = min(extract_layer_index(k["layer_name"]), len(rows) - 1)  # layers behind the last have its map
                k["router"].expert_map = rows[row].to(get_current_vllm_config().device_config.device)
            super().__init__(*a, **k)

    def filter_duplicate_safetensors_files(*a, **k):
        return [n for n in files(*a, **k) if not is_map(n)]

    model_config.get_config = get_config
    layer.determine_expert_counts = determine_expert_counts
    layer.create_fused_moe_router = create_fused_moe_router
    layer.MoERunner = Runner
    default_loader.filter_duplicate_safetensors_files = filter_duplicate_safetensors_files


def is_map(path):
    """Whether a file of weights is the map that the config.json beside it names."""
    try:
        with open(os.path.join(os.path.dirname(path), "config.json"), encoding="utf-8") as f:
            return json.load(f).get("expert_map") == os.path.basename(path)
    except (OSError, ValueError):
        return False
