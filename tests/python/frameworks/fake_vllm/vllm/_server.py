"""vllm.entrypoints.cli.main: `vllm serve`, of which the paths of vLLM's development mode are here."""
import argparse
import http.server
import json
import sys
import urllib.parse

from vllm._engine import EngineArgs, EngineCore, load_general_plugins


class Handler(http.server.BaseHTTPRequestHandler):
    core: EngineCore

    def log_message(self, *words: object) -> None:
        pass

    def answer(self, status: int, body: object = None) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def do_GET(self) -> None:
        self.answer(200, {"is_sleeping": self.core.is_sleeping()} if self.path == "/is_sleeping" else None)

    def do_POST(self) -> None:
        url = urllib.parse.urlsplit(self.path)
        query = urllib.parse.parse_qs(url.query)
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "{}")
        try:
            if url.path == "/sleep":
                self.core.sleep(int(query.get("level", ["1"])[0]))
            elif url.path == "/release_kv_cache_memory":
                self.core.release_kv_cache_memory()
            elif url.path == "/collective_rpc":
                return self.answer(200, {"results": self.core.model_executor.collective_rpc(body["method"], args=body["args"])})
            elif url.path == "/v1/completions":
                assert not self.core.is_sleeping(), "requests wait"
                prompt = body["prompt"].encode() if isinstance(body["prompt"], str) else body["prompt"]
                tokens = self.core.model_executor.collective_rpc("execute", args=([each % 256 for each in prompt], body["max_tokens"]))[0]
                return self.answer(200, {"choices": [{"token_ids": tokens}]})
            elif url.path == "/wake_up":
                self.core.wake_up(query.get("tags"))
            else:
                return self.answer(404)
        except Exception as error:  # noqa: BLE001
            return self.answer(500, str(error))
        return self.answer(200, {})


def main() -> None:
    load_general_plugins()
    parser = argparse.ArgumentParser()
    parser.add_argument("serve")
    parser.add_argument("model")
    parser.add_argument("--port", type=int)
    parser.add_argument("--tensor-parallel-size", type=int, default=1)
    # Of the others none matters here.
    arguments, _ = EngineArgs.add_cli_args(parser).parse_known_args(sys.argv[1:])
    Handler.core = EngineCore(EngineArgs.from_cli_args(arguments).create_engine_config())
    http.server.HTTPServer(("127.0.0.1", arguments.port), Handler).serve_forever()
