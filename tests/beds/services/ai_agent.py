"""An AI agent's calls of the tools of `trainyard mcp`, by the client of MCP's makers."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import mcp


async def call(agent: "mcp.Client | mcp.ClientSession", tool: str, **arguments: Any) -> tuple[str, dict[str, Any]]:
    """Text and content of an answer. An error has its text alone, or the findings of a dry run."""
    from mcp_types import CallToolResult, TextContent

    result = await agent.call_tool(tool, arguments)
    assert isinstance(result, CallToolResult)
    (block,) = result.content
    assert isinstance(block, TextContent)
    return ("ERROR: " if result.is_error else "") + block.text, result.structured_content or {}


async def ended(agent: "mcp.Client | mcp.ClientSession", job: str) -> dict[str, Any]:
    """The job once it has ended."""
    content: dict[str, Any] = {}
    while not content.get("ended"):
        _, content = await call(agent, "wait", job=job, timeout_s=20)
    return content
