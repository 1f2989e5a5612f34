"""A session as a whole: how it begins where it cannot, and that it ends once."""

from __future__ import annotations

import asyncio

import pytest

from bridge import AssemblyAI, Bridge, ProviderError, Resumable, Toolset, connect
from bridge.core.events import SessionEnded
from tests.relay.rig import PATIENCE, providing

pytestmark = pytest.mark.anyio


async def test_a_session_that_has_ended_at_its_provider_does_not_go_on_in_another_process() -> None:
    async with providing() as providers, asyncio.timeout(PATIENCE), Bridge(Toolset()) as bridge:

        async def go_on() -> None:
            resume = Resumable("a", "sess_1", "t1")
            with pytest.raises(ProviderError, match="the provider has ended it"):
                async with bridge.session(AssemblyAI(url=providers.url), api_key="k", resume=resume):
                    pass

        async with asyncio.TaskGroup() as group:
            group.create_task(go_on())
            provider = await providers.next()
            await provider.hear("session.resume")
            await provider.say("session.ended")


async def test_a_session_that_the_provider_ends_has_ended_once_although_the_host_leaves_it_later() -> None:
    ends: list[str] = []
    async with providing() as providers, asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:

        async def host() -> None:
            async with connect(
                AssemblyAI(url=providers.url),
                api_key="k",
                observers=(lambda _, step: ends.extend(e.reason for e in step.events if isinstance(e, SessionEnded)),),
            ) as session:
                await session.run()
                await session.end("once more")

        group.create_task(host())
        provider = await providers.next()
        await provider.hear("session.update")
        await provider.say("session.ready", session_id="sess_1")
        await provider.say("session.ended")
    assert ends == ["the provider ended it"]
