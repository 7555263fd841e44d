"""Two hosts on one machine: network namespaces with a cable between them, and a listener on the cable."""
