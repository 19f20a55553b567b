"""Whether a gRPC server is not Ray's. Ray itself retries for up to two minutes, and may then end the process."""

from __future__ import annotations

from typing import Any

ANSWER_S = 2.0
"""How long its answer may take."""


def is_foreign(host: str, port: int, client: bool) -> bool:
    """Call a method that every such server of Ray has, and see whether this one has it.

    False where that can't be told: without grpcio, which only ``ray://`` needs, and without an answer in time.

    Args:
        host, port: of a server that speaks HTTP/2, not encrypted.
        client: whether it is to be the server for Ray clients (``ray://``), and not the head of a cluster.
    """
    try:
        import grpc
        from ray.core.generated import gcs_service_pb2, gcs_service_pb2_grpc, ray_client_pb2, ray_client_pb2_grpc
    except (ImportError, TypeError):  # protobuf raises the latter where its version does not suit
        return False
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    with grpc.insecure_channel(place, options=[("grpc.enable_http_proxy", 0)]) as channel:
        method: Any
        if client:
            method = ray_client_pb2_grpc.RayletDriverStub(channel).ClusterInfo
            request = ray_client_pb2.ClusterInfoRequest(type=ray_client_pb2.ClusterInfoType.PING)
        else:
            method = gcs_service_pb2_grpc.NodeInfoGcsServiceStub(channel).CheckAlive
            request = gcs_service_pb2.CheckAliveRequest()
        try:
            method(request, timeout=ANSWER_S)
        except grpc.RpcError as error:
            return bool(error.code() == grpc.StatusCode.UNIMPLEMENTED)
    return False
