"""The codec compiler: from the generated messages to ``generated/codecs.py``.

``protos/regenerate.py`` runs it. The rest of the package does not import it: it needs the
generated messages, which bring betterproto2, grpclib's server and asyncio with them, and these
take longer to import than everything else together.
"""

from ._module import codecs_source as codecs_source
