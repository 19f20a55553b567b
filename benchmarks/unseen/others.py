"""Codebooks, graphs, images, sound, tables."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.unseen.models import By, Then, add, drawn, get, made

# fmt: off
for _kind, _more in (("VectorQuantize", {"codebook_size": 8}), ("VectorQuantize kmeans", {"codebook_size": 4,
             "kmeans_init": True}), ("VectorQuantize cosine", {"codebook_size": 8, "use_cosine_sim": True})):
    add("vector-quantize-pytorch", _kind, lambda m=_more: Then(get("vector_quantize_pytorch.VectorQuantize")(dim=8,
         **m), 4, 8, 8), drawn((2, 8, 4)))
add("vector-quantize-pytorch", "FSQ", lambda: Then(get("vector_quantize_pytorch.FSQ")([4, 3, 3]), 4, 3, 3),
     drawn((2, 8, 4)))
add("vector-quantize-pytorch", "LFQ", lambda: Then(get("vector_quantize_pytorch.LFQ")(codebook_size=8, dim=3), 4, 3,
     3), drawn((2, 8, 4)))
add("vector-quantize-pytorch", "ResidualVQ", lambda: Then(get("vector_quantize_pytorch.ResidualVQ")(dim=8,
     codebook_size=8, num_quantizers=2), 4, 8, 8), drawn((2, 8, 4)))
add("egnn-pytorch", "EGNN", made("egnn_pytorch.EGNN", dim=8), drawn((2, 6, 8), (2, 6, 3)))
add("siren-pytorch", "SirenNet", made("siren_pytorch.SirenNet", dim_in=2, dim_hidden=8, dim_out=1, num_layers=2),
     drawn((6, 2)))
# fmt: on


class _Graph(nn.Module):
    def __init__(self, kind: str, **more: Any) -> None:
        super().__init__()
        layer = get(f"torch_geometric.nn.{kind}")
        self.first, self.last = layer(4, 8, **more), layer(8, 3, **more)

    def forward(self, x: Tensor, edges: Tensor) -> Any:
        return self.last(torch.relu(self.first(x, edges)), edges)


def _edges() -> tuple[Any, ...]:
    return torch.randn(6, 4), torch.tensor([[0, 1, 2, 3, 4, 5, 0, 2], [1, 2, 3, 4, 5, 0, 3, 5]])


# fmt: off
for _kind in ("GCNConv", "GATConv", "GATv2Conv", "SAGEConv", "GraphConv", "TAGConv", "ARMAConv", "TransformerConv",
             "SGConv", "LEConv", "ClusterGCNConv", "FiLMConv"):
    add("torch-geometric", _kind, lambda k=_kind: _Graph(k), _edges)
add("torch-geometric", "ChebConv", lambda: _Graph("ChebConv", K=2), _edges)
add("torch-geometric", "GIN", made("torch_geometric.nn.GIN", 4, 8, 2, 3), _edges)
add("torch-geometric", "PNA", lambda: _Graph("PNAConv", aggregators=["mean", "max"], scalers=["identity"],
     deg=torch.tensor([0, 4, 2])), _edges)
add("torch-geometric", "GraphUNet", made("torch_geometric.nn.GraphUNet", 4, 8, 3, 2), _edges)
# fmt: on


def _e3() -> nn.Module:
    o3, math = importlib.import_module("e3nn.o3"), importlib.import_module("e3nn.nn")
    linear, gate = o3.Linear("4x0e", "4x0e+2x1o"), math.FullyConnectedNet([4, 8, 4], torch.tanh)
    return nn.Sequential(gate, linear, math.NormActivation("4x0e+2x1o", torch.sigmoid))


# fmt: off
add("e3nn", "linear, norm", _e3, drawn((5, 4)))
add("e3nn", "tensor product", lambda: By(get("e3nn.o3.FullyConnectedTensorProduct")("2x0e+1o", "2x0e+1o",
     "2x0e+1o"), "forward"), drawn((4, 5), (4, 5)))
add("monai", "UNet", made("monai.networks.nets.UNet", spatial_dims=2, in_channels=1, out_channels=2, channels=(4, 8,
     16), strides=(2, 2), num_res_units=1), drawn((2, 1, 16, 16)))
add("monai", "SegResNet", made("monai.networks.nets.SegResNet", spatial_dims=2, init_filters=8, in_channels=1,
     out_channels=2, blocks_down=(1, 1), blocks_up=(1,)), drawn((2, 1, 16, 16)))
add("monai", "DenseNet", made("monai.networks.nets.DenseNet", spatial_dims=2, in_channels=1, out_channels=2,
     init_features=8, growth_rate=4, block_config=(1, 1)), drawn((2, 1, 32, 32)))
add("monai", "AttentionUnet", made("monai.networks.nets.AttentionUnet", spatial_dims=2, in_channels=1,
     out_channels=2, channels=(4, 8), strides=(2,)), drawn((2, 1, 16, 16)))
add("pytorch-tcn", "TCN", made("pytorch_tcn.TCN", num_inputs=3, num_channels=[4, 4], kernel_size=2), drawn((2, 3,
     12)))
add("pytorch-tcn", "TCN weight norm", made("pytorch_tcn.TCN", num_inputs=3, num_channels=[4, 4], kernel_size=2,
     use_norm="weight_norm", use_skip_connections=True), drawn((2, 3, 12)))
add("asteroid-filterbanks", "free",
     lambda: get("asteroid_filterbanks.Encoder")(get("asteroid_filterbanks.FreeFB")(8, 4)), drawn((2, 1, 32)))
add("asteroid-filterbanks", "param sinc",
     lambda: get("asteroid_filterbanks.Encoder")(get("asteroid_filterbanks.ParamSincFB")(8, 5, sample_rate=100.0)),
     drawn((2, 1, 32)))
add("entmax", "entmax15", lambda: Then(get("entmax.Entmax15")(dim=-1), 4, 6, 6), drawn((5, 4)))
add("entmax", "sparsemax", lambda: Then(get("entmax.Sparsemax")(dim=-1), 4, 6, 6), drawn((5, 4)))
add("entmax", "entmax bisect", lambda: Then(get("entmax.EntmaxBisect")(alpha=1.3), 4, 6, 6), drawn((5, 4)))
add("pytorch-tabnet", "TabNet", lambda: get("pytorch_tabnet.tab_network.TabNet")(4, 2, n_d=4, n_a=4,
     virtual_batch_size=4, group_attention_matrix=torch.eye(4)), drawn((8, 4)))
add("rtdl-num-embeddings", "periodic", lambda: nn.Sequential(get("rtdl_num_embeddings.PeriodicEmbeddings")(4, 6,
     lite=False), nn.Flatten(), nn.Linear(24, 2)), drawn((5, 4)))
# fmt: on
